"""Ranks that are threads of this process, for what needs several ranks and no MPI."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Barrier
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.backend import Collectives, Exchange

T = TypeVar("T")

#: Seconds after which a rank that waits for another one fails.
PATIENCE = 20.0


class Table:
    """Where the ranks put what is for the others."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = Barrier(size, timeout=PATIENCE)
        self.board: list[NDArray[Any]] = [np.empty(0)] * size
        pairs = [(source, target) for source in range(size) for target in range(size)]
        self.rows: dict[tuple[int, int], SimpleQueue[NDArray[Any]]] = {pair: SimpleQueue() for pair in pairs}


class ThreadCollectives(Collectives):
    """Collectives of one thread, on host arrays or on torch's tensors in the host's memory."""

    def __init__(self, rank: int, table: Table) -> None:
        self.rank, self.table = rank, table

    def _gather(self, buffer: Any) -> list[NDArray[Any]]:
        self.table.board[self.rank] = np.array(buffer)
        self.table.barrier.wait()
        gathered = list(self.table.board)
        self.table.barrier.wait()
        return gathered

    @override
    def all_reduce(self, buffer: Any) -> None:
        np.asarray(buffer)[...] = np.sum(self._gather(buffer), axis=0)

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        begins = np.concatenate(([0], np.cumsum(send_counts)))
        assert begins[-1] == len(send)
        for target, count in enumerate(send_counts):
            if count:
                self.table.rows[self.rank, target].put(np.array(send[begins[target] : begins[target + 1]]))
        return _Arriving(self, np.asarray(receive), receive_counts)

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        np.asarray(buffer)[...] = self._gather(buffer)[root]

    @override
    def barrier(self) -> None:
        self.table.barrier.wait()


class _Arriving(Exchange):
    def __init__(self, collectives: ThreadCollectives, receive: NDArray[Any], counts: Sequence[int]) -> None:
        self.collectives, self.receive, self.counts = collectives, receive, counts
        assert sum(counts) == len(receive)

    @override
    def progress(self) -> None:
        """Do nothing: the rows wait in their queues."""

    @override
    def wait(self) -> None:
        begin = 0
        for source, count in enumerate(self.counts):
            if count:
                rows = self.collectives.table.rows[source, self.collectives.rank].get(timeout=PATIENCE)
                assert len(rows) == count
                self.receive[begin : begin + count] = rows
                begin += count


def on_every_rank(size: int, work: Callable[[int, Collectives], T]) -> list[T]:
    """Return what *work* returns on each of *size* ranks, by rank; no row may be left that nobody waited for."""
    table = Table(size)
    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(work, rank, ThreadCollectives(rank, table)) for rank in range(size)]
    results = [rank.result() for rank in ranks]
    assert all(queue.empty() for queue in table.rows.values())
    return results
