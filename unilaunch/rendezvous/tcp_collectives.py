"""Collectives on host arrays over sockets between every two ranks, for launchers without MPI."""

import select
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import iadd
from time import perf_counter
from typing import Any

from unilaunch.errors import PeerLostError
from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch.overriding import override
from unilaunch.record import Record

#: Bytes of a large array.
_LARGE = 1 << 16
#: Of so many ranks each adds a small array by itself.
_FEW = 4
_PAIR = 2


class _Piece(Record, frozen=False):
    """Bytes in transit: a view of the caller's array; the first *done* bytes have been transferred."""

    view: memoryview
    done: int = 0

    @property
    def left(self) -> int:
        return len(self.view) - self.done


class TcpCollectives(Collectives):
    """Collectives on contiguous host arrays, sent from and received into the arrays themselves.

    Args:
        rank: This rank.
        connections: The connection to every other rank.
        spin: For how many seconds a rank that waits looks at its sockets again and again before it sleeps: to be woken
            takes some ten microseconds.
    """

    def __init__(self, rank: int, connections: Mapping[int, socket.socket], spin: float = 0.0) -> None:
        self.rank, self.size, self.spin = rank, len(connections) + 1, spin
        self.connections = connections
        self.sending: dict[int, deque[_Piece]] = {other: deque() for other in connections}
        self.receiving: dict[int, deque[_Piece]] = {other: deque() for other in connections}
        for connection in connections.values():
            connection.setblocking(False)

    @override
    def all_reduce(self, buffer: Any) -> None:
        """Add the ranks' arrays. Each sum is made in the order of the ranks: all get the same bits, in every run.

        Of a large array each rank adds a slice, and sends the others the sums ("reduce-scatter, then all-gather":
        Thakur, Rabenseifner and Gropp, 2005); of a small one each of a few ranks adds all, and of many ranks rank 0.
        """
        if buffer.nbytes >= _LARGE and self.size > _PAIR:
            flat, size = buffer.reshape(-1), self.size
            slices = [flat[flat.size * part // size : flat.size * (part + 1) // size] for part in range(size)]
            self._add(slices[self.rank], slices)
            sums = [piece for other in self.connections for piece in self._send(slices[self.rank], other)]
            self._wait([*sums, *(piece for other in self.connections for piece in self._receive(slices[other], other))])
        elif self.size <= _FEW:
            self._add(buffer, [buffer] * self.size)
        elif self.rank:
            self._wait([*self._send(buffer, 0), *self._receive(buffer, 0)])
        else:
            self._add(buffer, [buffer.reshape(-1)[:0]] * self.size)
            self._wait([piece for other in self.connections for piece in self._send(buffer, other)])

    def _add(self, own: Any, parts: Sequence[Any]) -> None:
        """Add to *own* the same part of the other ranks' arrays, and send each rank its part of this rank's array."""
        theirs = {rank: own.copy() for rank in self.connections}
        sent = [piece for rank in self.connections for piece in self._send(parts[rank], rank)]
        self._wait([*sent, *(piece for rank, rows in theirs.items() for piece in self._receive(rows, rank))])
        own[...] = reduce(iadd, (theirs.get(rank, own) for rank in range(self.size)))

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
        if self._try() or not block:
            return
        until = perf_counter() + self.spin
        while perf_counter() < until:
            if self._try():
                return
        poll = select.poll()
        for other, connection in self.connections.items():
            events = select.POLLIN * bool(self.receiving[other]) | select.POLLOUT * bool(self.sending[other])
            if events:
                poll.register(connection, events)
        poll.poll()
        self._try()

    def _try(self) -> bool:
        """Send and receive what the sockets allow now; return whether that was something."""
        moved = False
        for other in self.connections:
            try:
                moved |= self._push(other)
                moved |= self._pull(other)
            except OSError:
                raise PeerLostError(f"rank {other} is lost, and the job ends: its own log says why") from None
        return moved

    def _push(self, rank: int) -> bool:
        queue, moved = self.sending[rank], False
        while queue:
            try:
                queue[0].done += self.connections[rank].send(queue[0].view[queue[0].done :])
            except BlockingIOError:
                break
            moved = True
            if not queue[0].left:
                queue.popleft()
        return moved

    def _pull(self, rank: int) -> bool:
        queue, moved = self.receiving[rank], False
        while queue:
            try:
                count = self.connections[rank].recv_into(queue[0].view[queue[0].done :])
            except BlockingIOError:
                break
            if not count:
                raise ConnectionResetError
            moved = True
            queue[0].done += count
            if not queue[0].left:
                queue.popleft()
        return moved


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
