"""Ranks that are threads of this process, for tests that need several ranks and no MPI.

MPI allows a program less than plain memory does, and the threads hold it to that: a message is read from the sender's
buffer as late as MPI may read it, and a receive buffer holds no usable number before `wait` has returned.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Barrier, BrokenBarrierError, Event, Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch.rendezvous.alone import Alone

T = TypeVar("T")

#: Seconds after which a rank that waits for another one fails.
PATIENCE = 20.0


@dataclass(eq=False)
class Message:
    """Rows from one rank to another: the sender's own memory until it is delivered, a copy from then on."""

    key: tuple[int, ...]
    rows: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    delivered: Event = field(default_factory=Event)

    def deliver(self) -> None:
        """Read the sender's buffer; only the sender's thread calls it."""
        if not self.delivered.is_set():
            self.rows = self.rows.copy()
            self.delivered.set()


class Table:
    """Memory that the ranks share. A message is found by its source, its target and its number between the two."""

    def __init__(self, size: int) -> None:
        self.barrier, self.turn = Barrier(size, timeout=PATIENCE), Lock()
        self.board: list[Any] = [None] * size
        self.messages: dict[tuple[int, ...], Message] = {}


class ThreadCollectives(Collectives):
    """Collectives of one thread, on host arrays or on torch's tensors in the host's memory."""

    def __init__(self, rank: int, table: Table) -> None:
        self.rank, self.table = rank, table
        self.num_sent: Counter[int] = Counter()
        self.num_received: Counter[int] = Counter()
        self.under_way: set[ThreadExchange] = set()

    def deliver_all(self) -> None:
        """Deliver all messages of this rank, as MPI may while the rank is blocked in any call."""
        for exchange in self.under_way:
            exchange.deliver()

    def _gather(self, buffer: Any) -> list[NDArray[Any]]:
        self.table.board[self.rank] = np.asarray(buffer).copy()  # np.array of a tensor warns in numpy 2
        self.barrier()
        gathered = list(self.table.board)
        self.barrier()
        return gathered

    @override
    def all_reduce(self, buffer: Any) -> None:
        np.asarray(buffer)[...] = np.sum(self._gather(buffer), axis=0)

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        sent, received = np.asarray(send), np.asarray(receive)
        assert sent.flags.c_contiguous, "MPI sends from contiguous memory only"
        assert received.flags.c_contiguous, "MPI receives into contiguous memory only"
        received.reshape(-1).view(np.uint8)[...] = 0xFF  # NaN in all float types, and in what bfloat16 and int8 unpack
        outgoing, incoming = [], []
        for peer, rows in _groups(sent, send_counts):
            outgoing.append(self._message(self.rank, peer, self.num_sent[peer]))
            outgoing[-1].rows = rows
            self.num_sent[peer] += 1
        for peer, rows in _groups(received, receive_counts):
            incoming.append((self._message(peer, self.rank, self.num_received[peer]), rows))
            self.num_received[peer] += 1
        exchange = ThreadExchange(self, outgoing, incoming)
        self.under_way.add(exchange)
        return exchange

    def _message(self, *key: int) -> Message:
        return self.table.messages.setdefault(key, Message(key))  # the first rank makes it

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        np.asarray(buffer)[...] = self._gather(buffer)[root]

    @override
    def barrier(self) -> None:
        self.deliver_all()
        self.table.barrier.wait()


def _groups(rows: NDArray[Any], counts: Sequence[int]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Return the rows of each rank that has any, on the same memory."""
    assert sum(counts) == len(rows)
    for peer, (end, count) in enumerate(zip(accumulate(counts), counts, strict=True)):
        if count:
            yield peer, rows[end - count : end]


@dataclass(eq=False)
class ThreadExchange(Exchange):
    """An exchange under way: the messages that this rank sends, and those that it receives, each with its place."""

    collectives: ThreadCollectives
    outgoing: list[Message]
    incoming: list[tuple[Message, NDArray[Any]]]

    def deliver(self) -> None:
        """Read the send buffer."""
        for message in self.outgoing:
            message.deliver()

    @override
    def progress(self) -> None:
        """Do nothing: MPI promises no rows before `wait` has returned."""

    @override
    def wait(self) -> None:
        """Read the send buffer, which the caller may change from then on, and fill the receive buffer.

        Ranks may wait for their exchanges in any order: a rank that is blocked here delivers its other messages too.
        """
        self.deliver()
        for message, rows in self.incoming:
            if not message.delivered.is_set():
                self.collectives.deliver_all()
            assert message.delivered.wait(PATIENCE), "no rank sends what this one waits for"
            assert (message.rows.shape, message.rows.dtype) == (rows.shape, rows.dtype)
            rows[...] = message.rows
            del self.collectives.table.messages[message.key]
        self.incoming.clear()
        self.collectives.under_way.discard(self)


def _in_threads(size: int, table: Table, work: Callable[[int], T]) -> list[T]:
    """Return what *work* returns for each rank; raise the first error that is not another rank's."""

    def run(rank: int) -> T:
        try:
            return work(rank)
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    if errors := [error for future in futures if (error := future.exception())]:
        raise min(errors, key=lambda error: isinstance(error, BrokenBarrierError))  # not that others waited for it
    return [future.result() for future in futures]


def on_every_rank(size: int, work: Callable[[int, Collectives], T]) -> list[T]:
    """Return what *work* returns on each of *size* ranks, by rank; every exchange must have been waited for."""
    table = Table(size)
    ranks = [ThreadCollectives(rank, table) for rank in range(size)]
    results = _in_threads(size, table, lambda rank: work(rank, ranks[rank]))
    assert not any(rank.under_way for rank in ranks), "an exchange was begun and not waited for"
    assert not table.messages, "rows were sent that nobody received"
    return results


class RankInTurn(Alone):
    """The small messages of one thread, as JSON; the thread runs only while the others wait."""

    def __init__(self, rank: int, table: Table) -> None:
        self.rank, self.table = rank, table

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        self.table.board[self.rank] = json.dumps(value)
        self._wait()
        said = [json.loads(text) for text in self.table.board]
        self._wait()
        return said

    def _wait(self) -> None:
        self.table.turn.release()
        try:
            self.table.barrier.wait()
        finally:
            self.table.turn.acquire()


def in_turns(size: int, work: Callable[[int, RankInTurn], T]) -> list[T]:
    """Return what *work* returns on each of *size* ranks, by rank; or raise what the first rank has raised.

    One rank runs at a time: `np.load` parses a header, and threads that parse at once get a SystemError if the garbage
    collector calls Python code meanwhile, which hypothesis lets it do (CPython's issue 106905).
    """
    table = Table(size)

    def run(rank: int) -> T:
        with table.turn:
            return work(rank, RankInTurn(rank, table))

    return _in_threads(size, table, run)
