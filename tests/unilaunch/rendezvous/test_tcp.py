"""The ranks' agreements and collectives over sockets: ranks as threads, with real sockets between them."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from unilaunch.errors import MixedCallsError, PeerLostError, RendezvousError
from unilaunch.interfaces.calls import CallLog
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.machine.connections import WELCOME, Dialer, dial, new_secret
from unilaunch.monitor.connection import listen
from unilaunch.monitor.inbox import Inbox
from unilaunch.rendezvous import boards, tcp
from unilaunch.rendezvous.boards import Board, FileBoard, LaunchBoard, PublicBoard
from unilaunch.rendezvous.tcp import TcpCollectives, TcpPeers, accept_ranks, join
from unilaunch_graph.purpose import Purpose

T = TypeVar("T")


def _found(rank: int, size: int, run_id: str) -> LauncherInfo:
    return LauncherInfo("test", rank, size, rank, size, run_id, {}, mpi=False, rank_0_hosts=("127.0.0.1",))


def _board(found: LauncherInfo) -> Board:
    return FileBoard(found, os.environ)  # noqa: TID251


def _on_ranks(
    size: int, work: Callable[[TcpPeers], T], run_id: str = "", board: Callable[[LauncherInfo], Board] = _board
) -> list[T]:
    run_id = run_id or uuid4().hex
    finished = threading.Barrier(size)

    def one(rank: int) -> T:
        found = _found(rank, size, run_id)
        with closing_all(join(found, 20.0, board(found))) as peers:
            peers.calls = CallLog()
            try:
                return work(peers)
            finally:
                finished.wait(20)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@contextmanager
def closing_all(peers: TcpPeers) -> Iterator[TcpPeers]:
    """Close what a process that ends would leave to the system; each rank has a log of its own, as in a process."""
    peers.calls = CallLog()
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


def test_ranks_of_a_launch_meet_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first; a caller without the start's secret gets no answer."""
    monkeypatch.setattr(boards, "_PATIENCE", 2.0)
    heard = listen((), several=False, host_timeout=15.0)
    ended = threading.Event()

    def watch() -> None:
        with Inbox(heard) as inbox:
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
                    assert bool(board.find()) == told
        finally:
            ended.set()
        watching.result()
    with pytest.raises(RendezvousError, match=r"does not reach the launching process at 127\.0\.0\.1 port"):
        LaunchBoard(_found(0, 3, ""), heard.where).post()


def test_a_rank_that_greets_and_goes_can_come_again_and_comes_once() -> None:
    """A greeting whose sender has given up is nobody; a second one of the same rank is turned away."""
    secret = new_secret()
    listener = socket.create_server(("127.0.0.1", 0))
    place = listener.getsockname()
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(accept_ranks, listener, {1, 2}, secret, time.monotonic() + 10)
        with socket.create_connection(place) as gone:
            gone.sendall(Dialer(secret, "", 1).hello)
        true, twice, other = (dial([place], secret, rank, 5.0) for rank in (1, 1, 2))
        assert true
        assert twice is None
        assert other
        connections = accepted.result()
        connections[1].sendall(b"you")
        assert true.recv(3) == b"you"
    for connection in (*connections.values(), true, other):
        connection.close()


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
            caller = Dialer(secret, f"{address} {port}", 1)
            connection.sendall(caller.hello)
            proofs.append(caller.feed(connection.recv(64, socket.MSG_WAITALL)))
        for connection, proof in zip(calls, proofs, strict=True):
            connection.sendall(proof)
            welcomes.append(connection.recv(1))
        other = dial([(address, port)], secret, 2, 5.0)
        for connection in (*accepted.result().values(), *filter(None, [other])):
            connection.close()
    assert welcomes == [WELCOME, b""]


def test_a_rank_of_an_earlier_start_is_refused() -> None:
    """The name of the start is the same, as under torchrun with a static rendezvous; the secret is not."""
    run_id = uuid4().hex
    listener, _ = _board(_found(0, 2, run_id)).post()
    assert _board(_found(1, 2, run_id)).find()
    listener.close()
    assert _on_ranks(2, lambda peers: peers.share(1), run_id) == [[1, 1]] * 2


def test_without_a_secret_a_taken_port_is_passed_over() -> None:
    """With --insecure-rendezvous the ports follow from the name of the run."""
    run_id = uuid4().hex
    port = PublicBoard(_found(0, 2, run_id)).ports[0]
    with socket.create_server(("", port)):
        assert _on_ranks(2, lambda peers: peers.share(1), run_id, PublicBoard) == [[1, 1]] * 2


def test_the_name_of_rank_0s_host_may_become_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Kubernetes a pod can start before the DNS record of rank 0's pod exists."""
    look_up, unknown = socket.getaddrinfo, [socket.gaierror(socket.EAI_NONAME, "Name or service not known")]

    def unknown_at_first(host: str, *args: Any, **kwargs: Any) -> Any:
        if host == "pod-0" and unknown:
            raise unknown.pop()
        return look_up("127.0.0.1" if host == "pod-0" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", unknown_at_first)

    def board(found: LauncherInfo) -> Board:
        return PublicBoard(replace(found, local_size=1, rank_0_hosts=("pod-0",)))

    assert _on_ranks(2, lambda peers: peers.share(peers.rank), board=board) == [[0, 1]] * 2


def test_a_missing_rank_is_named() -> None:
    first, second = _found(0, 3, uuid4().hex), _found(1, 2, uuid4().hex)
    with pytest.raises(RendezvousError, match=r"2 of 2 ranks did not come in time \(rank 1, 2\)"):
        join(first, 0.2, _board(first))
    with pytest.raises(RendezvousError, match=r"rank 0 of test's job through a file in .*\? \(--timeout"):
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


def _error(act: Callable[[], object]) -> str:
    """Return the words of the error that ends a collective; "" if none does."""
    try:
        act()
    except (MixedCallsError, PeerLostError) as error:
        return str(error)
    return ""


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
        return _error(lambda: peers.share(None))

    assert words in _on_ranks(2, work)[0]


@pytest.mark.parametrize("call", [
    lambda peers: peers.share(None), lambda peers: peers.collectives().barrier(),
], ids=["share", "collective"])  # fmt: skip
def test_a_rank_that_goes_is_noticed_by_all(call: Callable[[TcpPeers], object]) -> None:
    def work(peers: TcpPeers) -> str:
        peers.share(None)
        said = _error(lambda: call(peers)) if peers.rank != 1 else ""
        for connection in peers.connections.values():
            with suppress(OSError):  # the other end may have hung up first
                connection.shutdown(socket.SHUT_RDWR)
        return said

    lost = _on_ranks(3, work)
    assert lost[0].startswith("rank 1 is lost")
    assert "is lost" in lost[2]


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


@pytest.mark.parametrize(("size", "shape"), [(2, (100_000,)), (3, ()), (3, (3, 30_001)), (6, (7,))])
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


def _sum(collectives: TcpCollectives, size: int = 1, purpose: Purpose = Purpose.NONE) -> None:
    collectives.calls.purpose = purpose
    collectives.all_reduce(np.ones(size))


def _swap(collectives: TcpCollectives, rows: int = 2, purpose: Purpose = Purpose.NONE) -> None:
    collectives.calls.purpose = purpose
    counts = [0 if rank == collectives.rank else rows for rank in range(2)]
    collectives.exchange(np.ones((rows, 1)), counts, np.empty((rows, 1)), counts).wait()


#: Calls of the same bytes or of others, for other purposes or of other kinds.
_CALLS: dict[str, Callable[[TcpCollectives], None]] = {
    "all_reduce": _sum,
    "sum_ranks": partial(_sum, purpose=Purpose.SUM_RANKS),
    "mean": partial(_sum, purpose=Purpose.MEAN),
    "sum_gradients": partial(_sum, size=300_000, purpose=Purpose.SUM_GRADIENTS),
    "halo": partial(_swap, purpose=Purpose.HALO),
    "fetch": partial(_swap, rows=3, purpose=Purpose.FETCH),
    "an exchange of rows": _swap,
    "a broadcast": lambda collectives: collectives.broadcast(np.ones(1), 0),
    "barrier": lambda collectives: collectives.barrier(),
}


@pytest.mark.parametrize(("first", "second"), [*pairwise(_CALLS)])
def test_different_collectives_end_in_one_line_that_names_both(first: str, second: str) -> None:
    """Also where their messages have as many bytes: without their words a sum would be a wrong number."""

    def work(peers: TcpPeers) -> str:
        collectives = cast("TcpCollectives", peers.collectives())
        _sum(collectives)
        try:
            _CALLS[second if peers.rank else first](collectives)
            _sum(collectives)  # a broadcast's root waits for nobody
        except (MixedCallsError, PeerLostError) as error:
            for connection in collectives.connections.values():  # as when its process ends
                connection.close()
            return str(error) if isinstance(error, MixedCallsError) else ""
        return ""

    errors = _on_ranks(2, work)
    said = f"rank 0 is at {first} (collective 3)", f"and rank 1 is at {second} (collective 3)"
    for error in filter(None, errors):
        assert all(words in error for words in said) or "collective 4" in error, error
    assert any(all(words in error for words in said) for error in errors), errors
    assert any(" at test_tcp.py:" in error for error in errors)


@pytest.mark.parametrize("arrays", [(np.ones(3), np.ones(4)), (np.ones(3), np.ones(3, np.int64))], ids=["size", "type"])
def test_one_collective_with_different_arrays_is_no_sum(arrays: tuple[Any, Any]) -> None:
    def work(peers: TcpPeers) -> None:
        collectives = peers.collectives()
        collectives.calls.purpose = Purpose.SUM_RANKS
        collectives.all_reduce(arrays[peers.rank].copy())

    with pytest.raises(MixedCallsError, match=r"sum_ranks \(collective 2\) got arrays of other sizes or dtypes"):
        _on_ranks(2, work)
