"""How ranks find and connect to each other: threads with real sockets. A real firewall is in tests/cluster."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from unilaunch.errors import EnvironmentMismatchError, MixedCallsError, PeerLostError, RendezvousError, UnilaunchError
from unilaunch.interfaces.calls import CallLog
from unilaunch.interfaces.world import LauncherInfo, World
from unilaunch.machine.connections import WELCOME, Dialer, dial, new_secret
from unilaunch.monitor.connection import listen
from unilaunch.monitor.inbox import Inbox
from unilaunch.rendezvous import boards, tcp
from unilaunch.rendezvous.boards import Board, Contact, FileBoard, LaunchBoard, PublicBoard, find_board
from unilaunch.rendezvous.rendezvous import _choose, meet
from unilaunch.rendezvous.secret_file import find_folder
from unilaunch.rendezvous.tcp import TcpCollectives, TcpPeers, accept_ranks, join
from unilaunch.spec.run_spec import RunSpec
from unilaunch.spec.variables import MONITOR
from unilaunch_graph.purpose import Purpose

Work = Callable[[TcpPeers, TcpCollectives], Any]
STRANGER = pytest.param("another user's", marks=pytest.mark.system)  # only root can give a file to another user


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder where ranks without MPI meet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "unilaunch" / "rendezvous"


def _found(rank: int, size: int, run_id: str) -> LauncherInfo:
    return LauncherInfo("test", rank, size, rank, size, run_id, {}, mpi=False, rank_0_hosts=("127.0.0.1",))


def _board(found: LauncherInfo) -> Board:
    return FileBoard(found, os.environ)  # noqa: TID251


def _share(peers: TcpPeers, _: TcpCollectives) -> Any:
    return peers.share(peers.rank)


def _on_ranks(
    size: int, work: Work, run_id: str = "", board: Callable[[LauncherInfo], Board] = _board, late: float = 0.0
) -> list[Any]:
    """Return what *work* returns on each rank; rank 0 comes to the collectives so many seconds *late*."""
    run_id, finished = run_id or uuid4().hex, threading.Barrier(size)

    def one(rank: int) -> Any:
        found = _found(rank, size, run_id)
        with ExitStack() as opened:  # what a process that ends leaves to the system
            peers = join(found, 20.0, board(found))
            peers.calls = CallLog()
            time.sleep(0 if rank else late)
            collectives = cast("TcpCollectives", peers.collectives())
            for connection in (*peers.connections.values(), *collectives.connections.values()):
                opened.enter_context(connection)
            try:
                return work(peers, collectives)
            finally:
                finished.wait(20)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def _outcome(act: Callable[[], Any]) -> Any:
    """Return what *act* returns, or the words of the error in which it ends."""
    try:
        return act()
    except UnilaunchError as error:
        return str(error)


@pytest.mark.parametrize(("local_size", "where", "board"), [
    (1, "127.0.0.1", PublicBoard), (1, "10.0.0.1,127.0.0.1", LaunchBoard), (2, "127.0.0.1", LaunchBoard),
])  # fmt: skip
def test_ranks_elsewhere_do_not_call_a_launch_on_loopback(local_size: int, where: str, board: type[Board]) -> None:
    """It knows of this host only, and a resource manager placed ranks on others: they meet as under a bare mpirun."""
    found = replace(_found(0, 2, "run"), local_size=local_size, rank_0_hosts=("node0",))
    assert type(find_board(found, {MONITOR: f"{where} 1 00 15"}, insecure=True)) is board


def test_jobs_of_one_name_on_two_hosts_that_share_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain torchrun has one name everywhere; the file of a job on one host is that host's."""
    one_host, names = _found(0, 2, "torchrun-none-127.0.0.1-29500"), []
    several = replace(one_host, local_size=1, rank_0_hosts=("node0",))
    monkeypatch.setattr(boards, "BOOT_ID", tmp_path / "boot_id")
    for boot in ("a", "b"):
        (tmp_path / "boot_id").write_text(boot)
        names += [FileBoard(found, {"XDG_CACHE_HOME": str(tmp_path)}).name for found in (one_host, several)]
    assert names[0] != names[2]
    assert names[1] == names[3]


@pytest.mark.parametrize("fault", [STRANGER, "writable", "a link"])
def test_a_folder_that_others_can_write_is_not_taken(fault: str, tmp_path: Path) -> None:
    """The next one is, for a job on one host; or else the job is refused."""
    folder = tmp_path / "unilaunch" / "rendezvous"
    folder.mkdir(parents=True, mode=0o700)
    if fault == "another user's":
        os.chown(folder, 65534, 65534)
    elif fault == "writable":
        folder.chmod(0o777)
    else:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    environ = {"XDG_CACHE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    assert find_folder(environ, one_host=True) == tmp_path / "run" / "unilaunch"
    with pytest.raises(EnvironmentMismatchError, match="--insecure-rendezvous"):
        find_folder(environ, one_host=False)


@pytest.mark.parametrize("fault", [STRANGER, 0o644, 0o640, 0o620, "a link"])
def test_a_file_that_others_could_have_made_is_not_believed(fault: str | int, cache: Path) -> None:
    board = cast("FileBoard", _board(_found(1, 2, "run")))
    file = cache / board.name
    file.write_text(Contact([("127.0.0.1", 1)], new_secret()).text)
    file.chmod(0o600)
    assert board.find()
    if isinstance(fault, int):
        file.chmod(fault)
    elif fault == "another user's":
        os.chown(file, 65534, 65534)
    elif fault == "a link":
        file.rename(cache / "elsewhere")
        file.symlink_to(cache / "elsewhere")
    assert board.find() is None


def test_ranks_of_a_launch_meet_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller without the start's secret gets no answer."""
    monkeypatch.setattr(boards, "_PATIENCE", 2.0)
    heard, ended = listen((), several=False, host_timeout=15.0), threading.Event()

    def watch() -> None:
        with Inbox(heard) as inbox:
            while not ended.is_set():
                inbox.take(0.05)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            assert _on_ranks(3, _share, board=lambda found: LaunchBoard(found, heard.where)) == [[0, 1, 2]] * 3
            for secret in (heard.secret, new_secret()):
                where = heard.where.replace(heard.secret.hex(), secret.hex())
                with closing(LaunchBoard(_found(1, 3, ""), where)) as board:
                    assert bool(board.find()) == (secret == heard.secret)
        finally:
            ended.set()
        watching.result()
    with pytest.raises(RendezvousError, match=r"does not reach the launching process at 127\.0\.0\.1 port"):
        LaunchBoard(_found(0, 3, ""), heard.where).post()


def test_only_the_connection_that_rank_0_keeps_is_welcome() -> None:
    """Not one whose rank has given up; and a rank calls all addresses of rank 0 at once: both keep the same one."""
    secret, listener = new_secret(), socket.create_server(("127.0.0.1", 0))
    address, port = listener.getsockname()
    with ThreadPoolExecutor(1) as pool, ExitStack() as kept:
        accepted = pool.submit(accept_ranks, listener, {1, 2}, secret, time.monotonic() + 10)
        gone, *calls = [kept.enter_context(socket.create_connection((address, port), 5)) for _ in range(3)]
        gone.sendall(Dialer(secret, "", 1).hello)
        gone.close()
        proofs, welcomes = [], []
        for connection in calls:
            caller = Dialer(secret, f"{address} {port}", 1)
            connection.sendall(caller.hello)
            proofs.append(caller.feed(connection.recv(64, socket.MSG_WAITALL)))
        for connection, proof in zip(calls, proofs, strict=True):
            connection.sendall(proof)
            welcomes.append(connection.recv(1))
        with cast("socket.socket", dial([(address, port)], secret, 2, 5.0)):
            connections = accepted.result()
        connections[1].sendall(b"you")
        assert calls[0].recv(3) == b"you"
        for connection in connections.values():
            connection.close()
    assert welcomes == [WELCOME, b""]


def test_a_start_that_was_killed_is_in_nobodys_way(cache: Path) -> None:
    """The next one may have its name (torchrun's static rendezvous), not its secret; its file does not stay."""
    for ended in ("run", "another"):
        _board(_found(0, 2, ended)).post()[0].close()
        assert _board(_found(1, 2, ended)).find()
        (file,) = cache.iterdir()
        os.utime(file, (0, 0))
        assert _on_ranks(2, _share, "run") == [[0, 1]] * 2
        assert list(cache.iterdir()) == []


def test_without_a_secret_a_taken_port_is_passed_over() -> None:
    """With --insecure-rendezvous the ports follow from the name of the run."""
    run_id = uuid4().hex
    with socket.create_server(("", PublicBoard(_found(0, 2, run_id)).ports[0])):
        assert _on_ranks(2, _share, run_id, PublicBoard) == [[0, 1]] * 2


def test_the_name_of_rank_0s_host_may_become_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Kubernetes a pod can start before the DNS record of rank 0's pod exists."""
    look_up, unknown = socket.getaddrinfo, [socket.gaierror(socket.EAI_NONAME, "Name or service not known")]

    def unknown_at_first(host: str, *args: Any, **kwargs: Any) -> Any:
        if host == "pod-0" and unknown:
            raise unknown.pop()
        return look_up("127.0.0.1" if host == "pod-0" else host, *args, **kwargs)

    def board(found: LauncherInfo) -> Board:
        return PublicBoard(replace(found, local_size=1, rank_0_hosts=("pod-0",)))

    monkeypatch.setattr(socket, "getaddrinfo", unknown_at_first)
    assert _on_ranks(2, _share, board=board) == [[0, 1]] * 2


def test_a_missing_rank_is_named() -> None:
    first, second = _found(0, 3, "run"), _found(1, 2, "another")
    assert "2 of 2 ranks did not come in time (rank 1, 2)" in _outcome(lambda: join(first, 0.2, _board(first)))
    assert "rank 0 of test's job through a file in " in _outcome(lambda: join(second, 0.2, _board(second)))


@pytest.mark.parametrize("call", [_share, lambda _, collectives: collectives.barrier()], ids=["share", "collective"])
def test_a_rank_that_goes_is_noticed_by_all(call: Work) -> None:
    def work(peers: TcpPeers, collectives: TcpCollectives) -> Any:
        said = _outcome(lambda: call(peers, collectives)) if peers.rank != 1 else ""
        for connection in (*peers.connections.values(), *collectives.connections.values()):
            with suppress(OSError):  # the other end may have hung up first
                connection.shutdown(socket.SHUT_RDWR)
        return said

    first, _, last = _on_ranks(3, work)
    assert first.startswith("rank 1 is lost")
    assert "is lost" in last


def test_a_message_that_makes_no_sense_ends_in_one_line() -> None:
    """Though it comes from a rank that knows the secret."""
    for message, words in (
        (struct.pack("!Q", 3 << 30), "announces a message of 3221225472 bytes"),
        (struct.pack("!Q", 100_000) + b"[" * 100_000, "is not JSON"),
    ):

        def work(peers: TcpPeers, _: TcpCollectives, message: bytes = message) -> Any:
            return peers.connections[0].sendall(message) if peers.rank else _outcome(lambda: peers.share(None))

        assert words in _on_ranks(2, work)[0]


def test_a_rank_may_come_late_to_the_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads its data first, say: the time in which the ranks must connect begins when the last one comes."""
    monkeypatch.setattr(tcp, "_MESH", 1.0)
    assert _on_ranks(3, _share, late=1.5) == [[0, 1, 2]] * 3


def test_a_lost_host_is_noticed_while_nothing_is_sent() -> None:
    """Without launch nothing else notices it, and the ranks would wait forever."""

    def seconds(peers: TcpPeers, _: TcpCollectives) -> int:
        (connection,) = peers.connections.values()
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle, pause, number = (connection.getsockopt(socket.IPPROTO_TCP, option) for option in options)
        return idle + pause * number

    assert max(_on_ranks(2, seconds)) <= 1000


@settings(max_examples=12)
@given(
    counts=st.integers(2, 4).flatmap(
        lambda size: st.lists(
            st.lists(st.sampled_from([0, 1, 3, 5000]), min_size=size, max_size=size), min_size=size, max_size=size
        )
    ),
    width=st.sampled_from([1, 7]),
    dtype=st.sampled_from([np.float64, np.complex64, np.bool_]),
)
def test_rows_arrive_where_they_belong(counts: list[list[int]], width: int, dtype: type) -> None:
    size = len(counts)

    def rows(source: int, target: int) -> NDArray[Any]:
        count = counts[source][target]
        return (np.arange(count * width).reshape(count, width) + 1000 * source + 100_000 * target).astype(dtype)

    def work(_: TcpPeers, collectives: TcpCollectives) -> None:
        mine, received = collectives.rank, list[Any]()
        arrivals = [counts[other][mine] for other in range(size)]
        for _again in range(2):  # the second exchange begins before the first has ended
            send = np.concatenate([rows(mine, other) for other in range(size)])
            receive: NDArray[Any] = np.empty((sum(arrivals), width), dtype)
            received.append((collectives.exchange(send, counts[mine], receive, arrivals), receive, send))
        for exchange, receive, _ in received:
            exchange.progress()
            exchange.wait()
            assert np.array_equal(receive, np.concatenate([rows(other, mine) for other in range(size)]))
        total, word = np.full(3, float(mine + 1)), np.full(2000, float(mine))
        collectives.all_reduce(total)
        collectives.broadcast(word, size - 1)
        collectives.barrier()
        assert (total == size * (size + 1) / 2).all()
        assert (word == size - 1).all()

    _on_ranks(size, work)


@pytest.mark.parametrize(("size", "shape"), [(2, (100_000,)), (3, ()), (3, (3, 30_001)), (6, (7,))])
def test_a_sum_has_the_same_bits_on_every_rank_and_in_every_run(size: int, shape: tuple[int, ...]) -> None:
    """Those of a sum in the order of the ranks, in whatever order they have connected."""
    values = np.random.default_rng(0).standard_normal((size, *shape)).astype(np.float32)
    in_order = np.zeros(shape, np.float32)
    for rank in range(size):
        in_order += values[rank]

    def add(order: int, _: TcpPeers, collectives: TcpCollectives) -> bytes:
        buffer = np.array(values[collectives.rank])
        collectives.connections = dict(sorted(collectives.connections.items())[::order])
        collectives.all_reduce(buffer)
        return buffer.tobytes()

    assert {*_on_ranks(size, partial(add, 1)), *_on_ranks(size, partial(add, -1))} == {in_order.tobytes()}


def _sum(collectives: TcpCollectives, size: int = 1) -> None:
    collectives.all_reduce(np.ones(size))


def _swap(collectives: TcpCollectives, rows: int = 2) -> None:
    counts = [0 if rank == collectives.rank else rows for rank in range(2)]
    collectives.exchange(np.ones((rows, 1)), counts, np.empty((rows, 1)), counts).wait()


#: Calls of the same bytes or of others, for other purposes or of other kinds.
_CALLS: dict[str, tuple[Callable[[TcpCollectives], None], Purpose]] = {
    "all_reduce": (_sum, Purpose.NONE),
    "sum_ranks": (_sum, Purpose.SUM_RANKS),
    "sum_gradients": (partial(_sum, size=300_000), Purpose.SUM_GRADIENTS),
    "halo": (_swap, Purpose.HALO),
    "fetch": (partial(_swap, rows=3), Purpose.FETCH),
    "a broadcast": (lambda collectives: collectives.broadcast(np.ones(1), 0), Purpose.NONE),
    "barrier": (lambda collectives: collectives.barrier(), Purpose.NONE),
}


@pytest.mark.parametrize(("first", "second"), [*pairwise(_CALLS)])
def test_different_collectives_end_in_one_line_that_names_both(first: str, second: str) -> None:
    """Also where their messages have as many bytes: without their words a sum would be a wrong number."""

    def work(peers: TcpPeers, collectives: TcpCollectives) -> str:
        try:
            call, collectives.calls.purpose = _CALLS[second if peers.rank else first]
            call(collectives)
            _sum(collectives)  # a broadcast's root waits for nobody
        except (MixedCallsError, PeerLostError) as error:
            for connection in collectives.connections.values():  # as when its process ends
                connection.close()
            return str(error) if isinstance(error, MixedCallsError) else ""
        return ""

    errors = "\n".join(_on_ranks(2, work))
    assert f"rank 0 is at {first} (collective 2)" in errors
    assert f"and rank 1 is at {second} (collective 2)" in errors
    assert " at test_rendezvous.py:" in errors


@pytest.mark.parametrize("other", [np.ones(4), np.ones(3, np.int64)], ids=["size", "type"])
def test_one_collective_with_different_arrays_is_no_sum(other: NDArray[Any]) -> None:
    def work(peers: TcpPeers, collectives: TcpCollectives) -> None:
        collectives.calls.purpose = Purpose.SUM_RANKS
        collectives.all_reduce(other.copy() if peers.rank else np.ones(3))

    with pytest.raises(MixedCallsError, match=r"sum_ranks \(collective 2\) got arrays of other sizes or dtypes"):
        _on_ranks(2, work)


def _meet(spec: RunSpec, num_hosts: int = 1) -> list[Any]:
    """Return on each of two ranks the address for the framework, or the words of the error."""

    def work(peers: TcpPeers, _: TcpCollectives) -> Any:
        world = World(peers.rank, 2, peers.rank, 2, 0, num_hosts, "here", "test")
        return _outcome(lambda: meet(peers, world, spec))

    return _on_ranks(2, work)


@pytest.mark.parametrize(("spec", "num_hosts"), [(RunSpec(), 1), (RunSpec(interface="lo"), 2)])
def test_a_framework_finds_rank_0_at_a_port_that_is_held_and_then_free(spec: RunSpec, num_hosts: int) -> None:
    """Closed connections linger for a minute: a job that is started again with --master-port does not wait."""
    first, second = _meet(spec, num_hosts)
    assert (first.address, first.port, first.interface) == ("127.0.0.1", second.port, "lo")
    assert (second.address, second.interface, second.listener) == ("127.0.0.1", "lo", None)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", first.port))
    with first.listener as listener:
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):  # who takes it over meets only its own clients
            listener.accept()
        listener.settimeout(10)
        with socket.create_connection(("127.0.0.1", first.port), timeout=10) as client:
            listener.accept()[0].close()  # the side that closes first is the one that lingers
            client.recv(1)
    again, _ = _meet(RunSpec(master_port=first.port))
    assert again.port == first.port
    again.listener.close()


@pytest.mark.parametrize(("spec", "num_hosts", "words"), [
    ({"master_addr": "no-such-host.invalid"}, 2, "no-such-host.invalid"),
    ({"interface": "none0"}, 1, "--interface none0: no such interface"),
    ({"interface": "none0"}, 2, "--interface none0: no such interface"),
    ({}, 1, "--master-port"),  # it is taken
])  # fmt: skip
def test_where_rank_0_cannot_be_found_is_refused_by_both(spec: dict[str, Any], num_hosts: int, words: str) -> None:
    with socket.create_server(("", 0)) as taken:
        refusals = _meet(RunSpec(**(spec or {"master_port": taken.getsockname()[1]})), num_hosts)
    assert [words in refusal for refusal in refusals] == [True, True]


@pytest.mark.parametrize(("arrived", "named", "expected"), [
    ({"a0": "10.0.0.1", "a1": "10.0.0.1", "b0": "fd00::1", "b1": "fd00::1"}, "ib0", ["A", "10.0.0.1", "ib0"]),
    ({"a0": "10.0.0.1", "b0": "fd00::1", "b1": "fd00::1"}, "ib0", ["B", "fd00::1", "ib0"]),
    ({"a0": "127.0.1.1", "a1": "127.0.0.1"}, None, ["A", "127.0.1.1", "lo"]),
    ({"b0": "127.0.1.1", "b1": "fd00::1"}, "eth0", ["B", "fd00::1", "eth0"]),
], ids=["the first", "another program answers at the first", "one host", "loopback there"])  # fmt: skip
def test_the_address_where_all_tokens_arrived(arrived: dict[str, str], named: str | None, expected: list[str]) -> None:
    """And on rank 0's host it is the one at which other hosts arrived."""
    sent = [{"A": (f"a{rank}", "eth0"), "B": (f"b{rank}", "eth0")} for rank in range(2)]
    assert _choose(["A", "B"], 1, sent, arrived, named) == expected
