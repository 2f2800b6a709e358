"""The ranks' agreements and collectives over sockets: ranks as threads, with real sockets between them."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any, TypeVar, cast
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from unilaunch.errors import PeerLostError, RendezvousError
from unilaunch.rank import tcp
from unilaunch.rank.tcp import TcpPeers, candidate_ports, join
from unilaunch.rank.tcp_collectives import TcpCollectives
from unilaunch.world import Found

T = TypeVar("T")


def _found(rank: int, size: int, run_id: str) -> Found:
    return Found("test", rank, size, rank, size, run_id, {}, mpi=False, heads=("127.0.0.1",))


def _on_ranks(size: int, work: Callable[[TcpPeers], T], run_id: str = "", patience: float = 20.0) -> list[T]:
    run_id = run_id or uuid4().hex
    finished = threading.Barrier(size)

    def one(rank: int) -> T:
        with closing_all(join(_found(rank, size, run_id), patience)) as peers:
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


def test_a_stranger_and_a_rank_of_another_run_are_turned_away() -> None:
    run_id = uuid4().hex
    token = sha256(f"unilaunch {run_id}".encode()).digest()
    ports = candidate_ports(token)

    def knock() -> None:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", ports[0]), 1) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100)
                    return
            except OSError:
                time.sleep(0.01)

    thread = threading.Thread(target=knock)
    thread.start()

    def late(rank: int) -> list[object]:
        with closing_all(join(_found(rank, 2, run_id), 20.0)) as peers:
            return list(peers.share(rank))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(late, 0)
        thread.join()
        assert tcp.connect(("127.0.0.1", ports[0]), 1, bytes(32), 2.0) is None
        second = pool.submit(late, 1)
    assert first.result() == second.result() == [0, 1]


def test_a_taken_port_is_passed_over() -> None:
    run_id = uuid4().hex
    port = candidate_ports(sha256(f"unilaunch {run_id}".encode()).digest())[0]
    with socket.create_server(("", port)):
        assert _on_ranks(2, lambda peers: peers.share(1), run_id) == [[1, 1]] * 2


def test_a_missing_rank_is_named() -> None:
    with pytest.raises(RendezvousError, match=r"2 of 2 ranks did not come in time \(rank 1, 2\)"):
        join(_found(0, 3, uuid4().hex), 0.2)
    with pytest.raises(RendezvousError, match=r"rank 1 did not reach rank 0 at 127\.0\.0\.1"):
        join(_found(1, 2, uuid4().hex), 0.2)


def _hang_up(peers: TcpPeers) -> None:
    for connection in peers.connections.values():
        with suppress(OSError):  # the other end may have hung up first
            connection.shutdown(socket.SHUT_RDWR)


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
    assert lost[0].startswith("rank 1 has gone")
    assert "has gone" in lost[2]
    assert time.monotonic() - begin < 5


@settings(max_examples=12)
@given(
    counts=st.integers(1, 4).flatmap(
        lambda size: st.lists(
            st.lists(st.sampled_from([0, 1, 3, 5000]), min_size=size, max_size=size), min_size=size, max_size=size
        )
    ),
    width=st.sampled_from([1, 7]),
)
def test_rows_arrive_where_they_belong(counts: list[list[int]], width: int) -> None:
    size = len(counts)

    def rows(source: int, target: int) -> NDArray[np.float64]:
        count = counts[source][target]
        return np.arange(count * width, dtype=np.float64).reshape(count, width) + 1000 * source + 100_000 * target

    def work(peers: TcpPeers) -> bool:
        collectives, mine = peers.collectives(), peers.rank
        received: list[Any] = []
        for _ in range(2):  # the second exchange begins before the first has ended
            send = np.concatenate([rows(mine, other) for other in range(size)])
            receive = np.full((sum(counts[other][mine] for other in range(size)), width), np.nan)
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


def test_a_sum_has_the_same_bits_on_every_rank_and_in_every_run() -> None:
    values = np.random.default_rng(0).standard_normal((4, 100_000)).astype(np.float32)

    def work(peers: TcpPeers) -> bytes:
        buffer = values[peers.rank].copy()
        peers.collectives().all_reduce(buffer)
        return bytes(buffer.tobytes())

    assert len({*_on_ranks(4, work), *_on_ranks(4, work)}) == 1


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

    assert _on_ranks(2, work)[0].startswith("rank 1 has gone")
