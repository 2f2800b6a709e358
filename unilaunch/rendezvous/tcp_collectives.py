"""Collectives on host arrays over sockets between every two ranks, for launchers without MPI."""

import select
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unilaunch.errors import PeerLostError
from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch.overriding import override
from unilaunch.record import Record


class _Piece(Record, frozen=False):
    """Bytes in transit: a view of the caller's array; the first *done* bytes have been transferred."""

    view: memoryview
    done: int = 0

    @property
    def left(self) -> int:
        return len(self.view) - self.done


class TcpCollectives(Collectives):
    """Collectives on contiguous host arrays, sent from and received into the arrays themselves."""

    def __init__(self, rank: int, connections: Mapping[int, socket.socket]) -> None:
        self.rank = rank
        self.connections = connections
        self.sending: dict[int, deque[_Piece]] = {other: deque() for other in connections}
        self.receiving: dict[int, deque[_Piece]] = {other: deque() for other in connections}
        self.ranks = {connection.fileno(): other for other, connection in connections.items()}
        for connection in connections.values():
            connection.setblocking(False)

    @override
    def all_reduce(self, buffer: Any) -> None:
        # Rank 0 adds in the order of the ranks: every rank gets the same bits, in every run.
        if self.rank:
            self._wait([*self._send(buffer, 0), *self._receive(buffer, 0)])
            return
        for other in sorted(self.connections):
            theirs = buffer.copy()
            self._wait(self._receive(theirs, other))
            buffer += theirs
        self._wait([piece for other in self.connections for piece in self._send(buffer, other)])

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        pieces: list[_Piece] = []
        for rank, rows in groups(send, send_counts):
            if rank == self.rank:
                next(theirs for other, theirs in groups(receive, receive_counts) if other == rank)[...] = rows
            else:
                pieces += self._send(rows, rank)
        for rank, rows in groups(receive, receive_counts):
            if rank != self.rank:
                pieces += self._receive(rows, rank)
        self.move(block=False)
        return _TcpExchange(self, pieces)

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        if self.rank == root:
            self._wait([piece for other in self.connections for piece in self._send(buffer, other)])
        else:
            self._wait(self._receive(buffer, root))

    @override
    def barrier(self) -> None:
        word = bytearray(1)
        if self.rank:
            self._wait([*self._send(word, 0), *self._receive(word, 0)])
            return
        self._wait([piece for other in self.connections for piece in self._receive(bytearray(1), other)])
        self._wait([piece for other in self.connections for piece in self._send(word, other)])

    def _send(self, buffer: Any, rank: int) -> list[_Piece]:
        return _queue(self.sending[rank], buffer)

    def _receive(self, buffer: Any, rank: int) -> list[_Piece]:
        return _queue(self.receiving[rank], buffer)

    def _wait(self, pieces: Sequence[_Piece]) -> None:
        while any(piece.left for piece in pieces):
            self.move(block=True)

    def move(self, *, block: bool) -> None:
        """Send and receive as much as the sockets allow, in the order of the requests; *block*: wait for a socket."""
        poll = select.poll()
        for other, connection in self.connections.items():
            events = select.POLLIN * bool(self.receiving[other]) | select.POLLOUT * bool(self.sending[other])
            if events:
                poll.register(connection, events)
        for descriptor, _ in poll.poll(None if block else 0):
            other = self.ranks[descriptor]
            try:
                self._push(other)
                self._pull(other)
            except OSError:
                raise PeerLostError(f"rank {other} is lost, and the job ends: its own log says why") from None

    def _push(self, rank: int) -> None:
        queue = self.sending[rank]
        while queue:
            try:
                queue[0].done += self.connections[rank].send(queue[0].view[queue[0].done :])
            except BlockingIOError:
                return
            if not queue[0].left:
                queue.popleft()

    def _pull(self, rank: int) -> None:
        queue = self.receiving[rank]
        while queue:
            try:
                count = self.connections[rank].recv_into(queue[0].view[queue[0].done :])
            except BlockingIOError:
                return
            if not count:
                raise ConnectionResetError
            queue[0].done += count
            if not queue[0].left:
                queue.popleft()


def _queue(queue: deque[_Piece], buffer: Any) -> list[_Piece]:
    view = memoryview(buffer)
    if view.format.startswith("Z"):  # complex numbers, which a memoryview cannot cast: a view of both their parts
        view = memoryview(buffer.view(buffer.real.dtype))
    pieces = [_Piece(view.cast("B"))] if view.nbytes else []
    queue.extend(pieces)
    return pieces


def groups(rows: Any, counts: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """Give the rows of each rank that has some."""
    start = 0
    for rank, count in enumerate(counts):
        if count:
            yield rank, rows[start : start + count]
        start += count


class _TcpExchange(Exchange):
    def __init__(self, collectives: TcpCollectives, pieces: Sequence[_Piece]) -> None:
        self.collectives = collectives
        self.pieces = pieces

    @override
    def progress(self) -> None:
        self.collectives.move(block=False)

    @override
    def wait(self) -> None:
        while any(piece.left for piece in self.pieces):
            self.collectives.move(block=True)
