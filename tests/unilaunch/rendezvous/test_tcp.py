"""The ranks' agreements and collectives over sockets: ranks as threads, with real sockets between them."""

import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from selectors import DefaultSelector
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from delays import is_delayed
from unilaunch.connections import sockets
from unilaunch.connections.handshake import WELCOME, Caller, Listener, NotProvenError, new_secret
from unilaunch.connections.sockets import call
from unilaunch.errors import EnvironmentMismatchError, PeerLostError, RendezvousError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.monitor.inbox import Inbox, listen
from unilaunch.overriding import override
from unilaunch.rendezvous import board as boards
from unilaunch.rendezvous import tcp
from unilaunch.rendezvous.board import Board, LaunchBoard, Meeting, PublicBoard
from unilaunch.rendezvous.joining import find_board
from unilaunch.rendezvous.secret_file import FileBoard, find_folder
from unilaunch.rendezvous.tcp import TcpPeers, accept_ranks, join
from unilaunch.rendezvous.tcp_collectives import TcpCollectives
from unilaunch.spec.variables import MONITOR

T = TypeVar("T")
STRANGER = pytest.param(
    "another user's", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
)


def _found(rank: int, size: int, run_id: str) -> LauncherInfo:
    return LauncherInfo("test", rank, size, rank, size, run_id, {}, mpi=False, rank_0_hosts=("127.0.0.1",))


def _board(found: LauncherInfo) -> Board:
    return FileBoard(found, os.environ)  # noqa: TID251


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's cache folder, where ranks without MPI meet."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "unilaunch" / "rendezvous"


def _on_ranks(
    size: int, work: Callable[[TcpPeers], T], run_id: str = "", board: Callable[[LauncherInfo], Board] = _board
) -> list[T]:
    run_id = run_id or uuid4().hex
    finished = threading.Barrier(size)

    def one(rank: int) -> T:
        found = _found(rank, size, run_id)
        with closing_all(join(found, 20.0, board(found))) as peers:
            try:
                return work(peers)
            finally:
                finished.wait(20)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@contextmanager
def closing_all(peers: TcpPeers) -> Iterator[TcpPeers]:
    """Close what a process that ends would leave to the system."""
    opened = list(peers.connections.values())
    make = peers.collectives

    def remembered() -> TcpCollectives:
        collectives = cast("TcpCollectives", make())
        opened.extend(collectives.connections.values())
        return collectives

    peers.collectives = remembered  # type: ignore[method-assign]
    try:
        yield peers
    finally:
        for connection in opened:
            connection.close()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_everyone_hears_everyone(size: int) -> None:
    def work(peers: TcpPeers) -> list[object]:
        return [peers.share({"rank": peers.rank, "text": "x" * 100_000}), peers.share(None)]

    expected = [{"rank": rank, "text": "x" * 100_000} for rank in range(size)]
    assert _on_ranks(size, work) == [[expected, [None] * size]] * size


def test_ranks_of_a_launch_meet_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first; a caller without the start's secret gets no answer."""
    monkeypatch.setattr(boards, "_PATIENCE", 2.0)
    heard = listen((), several=False, host_timeout=15.0)
    ended = threading.Event()

    def watch() -> None:
        with Inbox(heard.listener, heard.secret, 15.0) as inbox:
            while not ended.is_set():
                inbox.take(0.05)
            assert not inbox.connected

    def late(found: LauncherInfo) -> LaunchBoard:
        time.sleep(0 if found.rank else 0.5)
        return LaunchBoard(found, heard.where)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            assert _on_ranks(3, lambda peers: peers.share(peers.rank), board=late) == [[0, 1, 2]] * 3
            stranger = heard.where.replace(heard.secret.hex(), new_secret().hex())
            for where, told in ((heard.where, True), (stranger, False)):
                with closing(LaunchBoard(_found(1, 3, ""), where)) as board:
                    assert bool(board.read()) == told
        finally:
            ended.set()
        watching.result()
    with pytest.raises(RendezvousError, match=r"does not reach the launching process at 127\.0\.0\.1 port"):
        LaunchBoard(_found(0, 3, ""), heard.where).post()


def test_ranks_elsewhere_do_not_call_a_launch_that_listens_on_loopback() -> None:
    """It knows of this host only, and a resource manager placed ranks on others: they meet as under a bare mpirun."""
    one_host, two_hosts = _found(0, 2, "run"), replace(_found(0, 2, "run"), local_size=1, rank_0_hosts=("node0",))
    boards = {}
    for name, found in {"several": two_hosts, "one": one_host}.items():
        for where in ("127.0.0.1 1 00 15", "10.0.0.1,127.0.0.1 1 00 15"):
            board = find_board(found, {MONITOR: where}, insecure=True)
            boards[name, where.partition(" ")[0]] = type(board)
    assert boards == {
        ("several", "127.0.0.1"): PublicBoard, ("several", "10.0.0.1,127.0.0.1"): LaunchBoard,
        ("one", "127.0.0.1"): LaunchBoard, ("one", "10.0.0.1,127.0.0.1"): LaunchBoard,
    }  # fmt: skip


@pytest.mark.timed
def test_strangers_delay_nobody_and_are_not_let_in() -> None:
    """200 silent ones, one with 100,000 brackets, one that claims 3 GB, one with another secret, one that stops.

    They delay the ranks' meeting by less than 0.1 s.
    """

    def seconds(strangers: int) -> float:
        run_id = uuid4().hex
        found = [_found(rank, 2, run_id) for rank in range(2)]
        with ThreadPoolExecutor(2) as pool, ExitStack() as kept:
            first = pool.submit(join, found[0], 20.0, _board(found[0]))
            meeting = _await(lambda: _board(found[1]).read())
            if strangers:
                for _ in range(strangers):
                    kept.enter_context(socket.create_connection(meeting.places[0]))
                for rude in (b"[" * 100_000, b"\xff" * 8 + b"x" * 1000, Caller(bytes(32), "", 1).hello):
                    kept.enter_context(socket.create_connection(meeting.places[0])).sendall(rude)
                assert call(meeting.places, new_secret(), 1, 2.0) is None
            begin = time.monotonic()
            second = pool.submit(join, found[1], 20.0, _board(found[1]))
            with closing_all(first.result()) as zero, closing_all(second.result()) as one:
                took = time.monotonic() - begin
                heard = pool.submit(zero.share, 0)
                assert one.share(1) == heard.result() == [0, 1]
        return took

    assert not is_delayed(lambda: seconds(0), lambda: seconds(200), 0.1)


def _await(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + 10
    while (found := look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_a_rank_that_greets_and_goes_can_come_again_and_comes_once() -> None:
    """A greeting whose sender has given up is nobody; a second one of the same rank is turned away."""
    secret = new_secret()
    listener = socket.create_server(("127.0.0.1", 0))
    place = listener.getsockname()
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(accept_ranks, listener, {1, 2}, secret, time.monotonic() + 10)
        with socket.create_connection(place) as gone:
            gone.sendall(Caller(secret, "", 1).hello)
        true, twice, other = (call([place], secret, rank, 5.0) for rank in (1, 1, 2))
        assert true
        assert twice is None
        assert other
        connections = accepted.result()
        connections[1].sendall(b"you")
        assert true.recv(3) == b"you"
    for connection in (*connections.values(), true, other):
        connection.close()


def test_a_caller_that_has_proven_itself_does_not_give_up() -> None:
    """A busy rank 0 may have accepted it: the connection of a second call would be closed, and the job would end."""
    secret = new_secret()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        address, port = listener.getsockname()
        calling = pool.submit(call, [(address, port)], secret, 1, 0.5)
        connection, _ = listener.accept()
        with connection:
            busy = Listener(secret, f"{address} {port}")
            connection.sendall(busy.feed(connection.recv(100)))
            welcome = busy.feed(connection.recv(100))
            time.sleep(1)
            connection.sendall(welcome)
            accepted = calling.result()
            assert accepted
            accepted.close()


def test_only_the_connection_that_rank_0_keeps_is_welcome() -> None:
    """A rank calls all addresses of rank 0 at once; it kept one, and rank 0 the other, where both were welcome."""
    secret = new_secret()
    listener = socket.create_server(("127.0.0.1", 0))
    address, port = listener.getsockname()
    with ThreadPoolExecutor(1) as pool, ExitStack() as kept:
        accepted = pool.submit(accept_ranks, listener, {1, 2}, secret, time.monotonic() + 10)
        calls = [kept.enter_context(socket.create_connection((address, port), 5)) for _ in range(2)]
        welcomes, proofs = [], []
        for connection in calls:
            caller = Caller(secret, f"{address} {port}", 1)
            connection.sendall(caller.hello)
            proofs.append(caller.prove(connection.recv(64, socket.MSG_WAITALL)))
        for connection, proof in zip(calls, proofs, strict=True):
            connection.sendall(proof)
            welcomes.append(connection.recv(1))
        other = call([(address, port)], secret, 2, 5.0)
        for connection in (*accepted.result().values(), *filter(None, [other])):
            connection.close()
    assert welcomes == [WELCOME, b""]


def test_a_rank_of_an_earlier_start_is_refused() -> None:
    """The name of the start is the same, as under torchrun with a static rendezvous; the secret is not."""
    run_id = uuid4().hex
    old = _found(0, 2, run_id)
    board = _board(old)
    listener, _ = board.post()
    stale = _board(_found(1, 2, run_id)).read()
    assert stale
    listener.close()
    assert _on_ranks(2, lambda peers: peers.share(1), run_id) == [[1, 1]] * 2
    again = _found(0, 2, run_id)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(join, again, 20.0, _board(again))
        new = _await(_board(_found(1, 2, run_id)).read)
        assert call(new.places, stale.secret, 1, 2.0) is None
        true = _found(1, 2, run_id)
        with closing_all(join(true, 20.0, _board(true))) as one, closing_all(waiting.result()) as zero:
            shared = pool.submit(zero.share, 1)
            assert one.share(1) == shared.result() == [1, 1]


def test_without_a_secret_a_taken_port_is_passed_over() -> None:
    """With --insecure-rendezvous the ports follow from the name of the run."""
    run_id = uuid4().hex
    port = PublicBoard(_found(0, 2, run_id)).ports[0]
    with socket.create_server(("", port)):
        assert _on_ranks(2, lambda peers: peers.share(1), run_id, PublicBoard) == [[1, 1]] * 2


def test_the_name_of_rank_0s_host_may_become_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Kubernetes a pod can start before the DNS record of rank 0's pod exists."""
    asked: list[str] = []
    look_up = socket.getaddrinfo

    def unknown_at_first(host: str, *args: Any, **kwargs: Any) -> Any:
        if host != "pod-0":
            return look_up(host, *args, **kwargs)
        asked.append(host)
        if len(asked) == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", unknown_at_first)

    def board(found: LauncherInfo) -> Board:
        return PublicBoard(replace(found, local_size=1, rank_0_hosts=("pod-0",)))

    assert _on_ranks(2, lambda peers: peers.share(peers.rank), board=board) == [[0, 1]] * 2


def test_more_strangers_than_can_stand_at_the_door() -> None:
    """One that is sent away while its own words come in ends nothing; the rank behind them comes in."""
    secret = new_secret()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    place = listener.getsockname()
    with ThreadPoolExecutor(1) as pool, ExitStack() as kept:
        for _ in range(300):
            kept.enter_context(socket.create_connection(place)).sendall(b"u")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sockets, "_STRANGERS", 100)
            accepted = pool.submit(accept_ranks, listener, {1}, secret, time.monotonic() + 10)
            true = _await(lambda: call([place], secret, 1, 5.0))
            (connection,) = accepted.result().values()
    connection.close()
    true.close()


def test_strangers_leave_a_process_half_of_its_open_files() -> None:
    """It needs files for its own work: an agent that cannot open any ends, and the job with it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    port, before = listener.getsockname()[1], resource.getrlimit(resource.RLIMIT_NOFILE)
    calling = f"import socket, sys; kept = [socket.create_connection(('127.0.0.1', {port})) for _ in range(600)]"
    line = [sys.executable, "-c", f"{calling}; print(flush=True); sys.stdin.read()"]
    with (
        subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as strangers,
        DefaultSelector() as selector,
    ):
        assert strangers.stdin
        assert strangers.stdout
        assert strangers.stdout.readline() == b"\n"
        door = sockets.Door(listener, new_secret(), selector, lambda *_: None)
        half = len(list(Path("/proc/self/fd").iterdir())) + 32  # tests before this one have left some open
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * half, before[1]))
        try:
            for _ in range(800):
                for key, _ in selector.select(0):
                    key.data()
            assert len(door.strangers) == half
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        door.close()
        strangers.stdin.close()


def test_jobs_of_one_name_on_two_hosts_that_share_a_home() -> None:
    """Plain torchrun has one name everywhere; the file of a job on one host is that host's."""
    one_host, several = (
        _found(0, 2, "torchrun-none-127.0.0.1-29500"),
        LauncherInfo("test", 0, 2, 0, 1, "torchrun-none-127.0.0.1-29500", {}),
    )
    names = []
    for boot in ("a", "b"):
        with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
            file = Path(folder, "boot_id")
            file.write_text(boot)
            patch.setattr("unilaunch.rendezvous.secret_file.BOOT_ID", file)
            far = replace(several, rank_0_hosts=("node0",))
            names += [FileBoard(found, os.environ).name for found in (one_host, far)]  # noqa: TID251
    assert names[0] != names[2]
    assert names[1] == names[3]


def test_jobs_of_one_name_in_two_containers_that_share_a_home() -> None:
    """Where process numbers begin anew, mpirun gives one name to the first job of each; its server tells them apart."""
    found = _found(0, 2, "openmpi-prterun-box-7@1")
    servers = [f"prterun-box-7@0.0;tcp4://127.0.0.1:{port}" for port in (4001, 4002, 4001)]
    names = [FileBoard(found, {**os.environ, "PMIX_SERVER_URI41": server}).name for server in servers]  # noqa: TID251
    assert names[0] != names[1]
    assert names[0] == names[2]


def test_a_missing_rank_is_named() -> None:
    first, second = _found(0, 3, uuid4().hex), _found(1, 2, uuid4().hex)
    with pytest.raises(RendezvousError, match=r"2 of 2 ranks did not come in time \(rank 1, 2\)"):
        join(first, 0.2, _board(first))
    with pytest.raises(RendezvousError, match=r"rank 1 did not find rank 0 of test's job through a file in"):
        join(second, 0.2, _board(second))


def test_nothing_is_left_on_the_board(cache: Path) -> None:
    """Neither by a start that met, nor for ever by one that was killed."""
    found = _found(0, 2, uuid4().hex)
    board = _board(found)
    listener, _ = board.post()
    listener.close()
    (file,) = (path for path in cache.iterdir() if path.stat().st_mode & 0o777 == 0o600)
    os.utime(file, (0, 0))
    assert _on_ranks(2, lambda peers: peers.share(1)) == [[1, 1]] * 2
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(("message", "words"), [
    (struct.pack("!Q", 3 << 30), "announces a message of 3221225472 bytes"),
    (struct.pack("!Q", 100_000) + b"[" * 100_000, "is not JSON"),
], ids=["3 GB", "brackets"])  # fmt: skip
def test_a_message_that_makes_no_sense_ends_in_one_line(message: bytes, words: str) -> None:
    """Though it comes from a rank that knows the secret."""

    def work(peers: TcpPeers) -> str:
        if peers.rank == 1:
            peers.connections[0].sendall(message)
            return ""
        try:
            peers.share(None)
        except PeerLostError as error:
            return str(error)
        return "believed"

    assert words in _on_ranks(2, work)[0]


@given(pieces=st.lists(st.binary(max_size=120), max_size=6))
def test_whatever_a_stranger_sends_it_is_not_let_in(pieces: list[bytes]) -> None:
    """It reads 76 bytes of it at most."""
    greeting, read = Listener(new_secret(), "here 1"), 0
    with suppress(NotProvenError):
        for piece in pieces:
            data = piece[: greeting.wanted]
            read += len(data)
            greeting.feed(data)
    assert greeting.identity is None
    assert read <= 76


@pytest.mark.parametrize("change", ["port", "address", "identity", "secret"])
def test_a_proof_is_for_one_place_one_rank_and_one_start(change: str) -> None:
    """So a false rank 0 cannot pass a caller's proof on."""
    secret = new_secret()
    listener, caller = Listener(secret, "here 1"), Caller(secret, "here 1", 3)
    proof = caller.prove(listener.feed(caller.hello))
    listener.feed(proof)
    assert listener.identity == 3
    other = {
        "port": Caller(secret, "here 2", 3), "address": Caller(secret, "there 1", 3),
        "identity": Caller(secret, "here 1", 4), "secret": Caller(new_secret(), "here 1", 3),
    }[change]  # fmt: skip
    listener = Listener(secret, "here 1")
    answer = listener.feed(caller.hello)
    other.challenge = caller.challenge
    with pytest.raises(NotProvenError):
        other.prove(answer)


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


@pytest.mark.parametrize(
    "fault",
    [STRANGER, "readable", "readable by the group", "writable by the group", "a link", "huge", "nonsense"],
)
def test_a_file_that_others_could_have_made_is_not_believed(fault: str, cache: Path) -> None:
    """It is as if there were none."""
    found = _found(1, 2, uuid4().hex)
    board = FileBoard(found, {"XDG_CACHE_HOME": str(cache.parents[1])})
    file = cache / board.name
    text = Meeting([("127.0.0.1", 1)], new_secret()).text
    file.write_text({"huge": text + "," * 5000, "nonsense": "x"}.get(fault, text))
    file.chmod({"readable": 0o644, "readable by the group": 0o640, "writable by the group": 0o620}.get(fault, 0o600))
    if fault == "another user's":
        os.chown(file, 65534, 65534)
    elif fault == "a link":
        file.rename(cache / "elsewhere")
        file.symlink_to(cache / "elsewhere")
    assert board.read() is None
    file.unlink()
    (cache / "elsewhere").unlink(missing_ok=True)


def _hang_up(peers: TcpPeers) -> None:
    for connection in peers.connections.values():
        with suppress(OSError):  # the other end may have hung up first
            connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.timed
def test_a_rank_that_goes_is_noticed_at_once() -> None:
    def work(peers: TcpPeers) -> str:
        if peers.rank == 1:
            _hang_up(peers)
            return "gone"
        try:
            peers.share(None)
        except PeerLostError as error:
            _hang_up(peers)
            return str(error)
        return "unnoticed"

    begin = time.monotonic()
    lost = _on_ranks(3, work)
    assert lost[0].startswith("rank 1 is lost")
    assert "is lost" in lost[2]
    assert time.monotonic() - begin < 5


def test_a_rank_may_come_late_to_the_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads its data first, say: the time in which the ranks must connect begins when the last one comes."""
    monkeypatch.setattr(tcp, "_MESH", 1.0)

    def work(peers: TcpPeers) -> bool:
        time.sleep(0 if peers.rank else 1.5)
        peers.collectives().barrier()
        return True

    assert all(_on_ranks(3, work))


def test_a_lost_host_is_noticed_while_nothing_is_sent() -> None:
    """Without launch nothing else notices it, and the ranks would wait forever."""

    def seconds(connection: socket.socket) -> int:
        if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            return 0
        options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
        idle, pause, number = (connection.getsockopt(socket.IPPROTO_TCP, option) for option in options)
        return idle + pause * number

    probed = _on_ranks(2, lambda peers: [*map(seconds, peers.connections.values())])
    assert all(0 < one <= 1000 for of_rank in probed for one in of_rank)


@settings(max_examples=12)
@given(
    counts=st.integers(1, 4).flatmap(
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
        values = np.arange(count * width).reshape(count, width) + 1000 * source + 100_000 * target
        return values.astype(dtype)

    def work(peers: TcpPeers) -> bool:
        collectives, mine = peers.collectives(), peers.rank
        received: list[Any] = []
        for _ in range(2):  # the second exchange begins before the first has ended
            send = np.concatenate([rows(mine, other) for other in range(size)])
            receive: NDArray[Any] = np.empty((sum(counts[other][mine] for other in range(size)), width), dtype)
            arrivals = [counts[other][mine] for other in range(size)]
            received.append((collectives.exchange(send, counts[mine], receive, arrivals), receive, send))
        for exchange, _, _ in received:
            exchange.progress()
            exchange.wait()
        expected = np.concatenate([rows(other, mine) for other in range(size)])
        total = np.full(3, float(mine + 1))
        collectives.all_reduce(total)
        root = size - 1
        word = np.full(2000, float(mine))
        collectives.broadcast(word, root)
        collectives.barrier()
        fits = all(np.array_equal(receive, expected) for _, receive, _ in received)
        return bool(fits and (total == size * (size + 1) / 2).all() and (word == root).all())

    if size == 1:
        return
    assert all(_on_ranks(size, work))


@pytest.mark.parametrize("shape", [(), (7,), (100_000,), (3, 30_001)])
@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_a_sum_has_the_same_bits_on_every_rank_and_in_every_run(size: int, shape: tuple[int, ...]) -> None:
    """Those of a sum in the order of the ranks, in whatever order they have connected."""
    values = np.random.default_rng(0).standard_normal((size, *shape)).astype(np.float32)
    in_order = values[0].copy()
    for rank in range(1, size):
        in_order += values[rank]

    def sum_up(order: int) -> Callable[[TcpPeers], bytes]:
        def work(peers: TcpPeers) -> bytes:
            buffer = np.array(values[peers.rank])
            collectives = cast("TcpCollectives", peers.collectives())
            collectives.connections = dict(sorted(collectives.connections.items())[::order])
            collectives.all_reduce(buffer)
            return buffer.tobytes()

        return work

    assert {*_on_ranks(size, sum_up(1)), *_on_ranks(size, sum_up(-1))} == {in_order.tobytes()}


def test_a_rank_lost_in_a_collective_is_noticed() -> None:
    def work(peers: TcpPeers) -> str:
        collectives = peers.collectives()
        if peers.rank == 1:
            for connection in collectives.connections.values():  # type: ignore[attr-defined]
                connection.close()
            return ""
        try:
            collectives.barrier()
        except PeerLostError as error:
            return str(error)
        return "unnoticed"

    assert _on_ranks(2, work)[0].startswith("rank 1 is lost")


def test_a_process_without_a_free_descriptor_says_so() -> None:
    """It was taken for a host without that IP version: the rank "did not find rank 0"."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))  # one is left, for the selector
    try:
        with pytest.raises(RendezvousError, match=rf"Too many open files: ulimit -n allows {free + 1} open files"):
            call([("127.0.0.1", 9), ("::1", 9)], new_secret(), 1, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_an_address_that_is_translated_on_the_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind NAT: rank 0 has another address than the one that rank 1 called, and is no proof of itself."""
    monkeypatch.setattr(tcp, "_TRY", 2.0)
    inner, outer = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.2", 0))
    inner_place, outer_place, secret = inner.getsockname(), outer.getsockname(), new_secret()

    def forward() -> None:
        caller = outer.accept()[0]
        with caller, socket.create_connection(inner_place) as listener:
            listener.sendall(caller.recv(1 << 10))
            caller.sendall(listener.recv(1 << 10))
            caller.recv(1)

    class Translated(PublicBoard):
        def __init__(self) -> None:
            self.advice = ""

        @override
        def read(self) -> Meeting:
            return Meeting([outer_place], secret)

    def accept() -> None:
        with suppress(RendezvousError):
            accept_ranks(inner, {1}, secret, time.monotonic() + 4.0)

    with outer, inner, ThreadPoolExecutor() as pool:
        pool.submit(forward)
        pool.submit(accept)
        with pytest.raises(RendezvousError, match=r"127\.0\.0\.2 \d+ is not of this job: .*\(NAT\)"):
            tcp._reach(_found(1, 2, uuid4().hex), Translated(), time.monotonic())
