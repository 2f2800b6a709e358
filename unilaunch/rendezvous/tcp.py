"""The ranks' peers over TCP, before MPI is initialised and under launchers without MPI.

For agreements each rank has one connection, to rank 0, whose address and secret it reads from a board. For collectives
on host arrays every two ranks are connected.
"""

import json
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import islice
from operator import iadd
from selectors import DefaultSelector
from typing import Any, cast

from unilaunch.errors import MixedCallsError, PeerLostError, RendezvousError
from unilaunch.interfaces.backend import Collectives, Exchange, Peers, groups
from unilaunch.interfaces.calls import OWN, Operation
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.json_value import JsonValue
from unilaunch.machine.connections import Acceptor, dial
from unilaunch.overriding import override
from unilaunch.record import Record
from unilaunch.rendezvous.boards import Board, Contact, listen_for_ranks

_SIZE = struct.Struct("!Q")
#: Before the bytes of each message of a collective: the type of its numbers and the word of the call
#: (`CallLog.begin`), and how many bytes follow.
_HEADER = struct.Struct("!IQ")
_WORD = 0x7FFF
#: Of two types of 64 bits that a memoryview names differently, the one that stands for both.
_SAME_AS = {"q": "l", "Q": "L"}
#: Pieces that one system call sends or receives.
_AT_ONCE = 16
#: Most bytes of one rank's value; rank 0's answer holds the values of all ranks.
_LARGEST = 1 << 26
_TRY = 5.0  # seconds for one try to reach rank 0
_TICK = 0.2
_MESH = 60.0  # seconds in which every two ranks connect, once all ranks have come
_SPIN = 0.0001  # seconds for which a rank that has a processor for itself looks for a message before it sleeps
#: Bytes of a large array.
_LARGE = 1 << 16
#: Of so many ranks each adds a small array by itself.
_FEW = 4
_PAIR = 2


def join(info: LauncherInfo, patience: float, board: Board) -> "TcpPeers":
    """Connect the ranks and return the peers.

    Raises:
        RendezvousError: Some ranks did not connect in time.
    """
    try:
        if info.rank:
            return TcpPeers(info, {0: _reach(info, board, time.monotonic() + patience)}, board)
        listener, secret = board.post()
        with listener:
            deadline = time.monotonic() + patience
            connections = accept_ranks(listener, set(range(1, info.size)), secret, deadline)
        return TcpPeers(info, connections, board)
    except BaseException:
        board.finish()
        raise
    finally:
        board.close()


def accept_ranks(
    listener: socket.socket, expected: set[int], secret: bytes, deadline: float
) -> dict[int, socket.socket]:
    """Return the connection of every expected rank; other connections do not delay a rank.

    Raises:
        RendezvousError: Some ranks did not connect before *deadline*, in seconds of `time.monotonic`.
    """
    connections: dict[int, socket.socket] = {}
    missing = set(expected)

    def accept(connection: socket.socket, rank: int) -> None:
        connection.setblocking(True)
        connections[rank] = connection
        missing.remove(rank)

    with DefaultSelector() as selector:
        acceptor = Acceptor(listener, secret, selector, accept, missing)
        try:
            while missing:
                left = deadline - time.monotonic()
                if left <= 0:
                    some = ", ".join(map(str, sorted(missing)[:10]))
                    raise RendezvousError(
                        f"{len(missing)} of {len(expected)} ranks did not come in time (rank {some}): were all of them "
                        "started, and can their hosts reach each other? --timeout gives them longer"
                    )
                for key, _ in selector.select(min(left, _TICK)):
                    key.data()
                acceptor.tick()
        finally:
            acceptor.close()
    return connections


def _reach(info: LauncherInfo, board: Board, deadline: float) -> socket.socket:
    pause, unproven = 0.01, set[str]()
    while True:
        contact = board.find()  # a launcher's store waits here for rank 0
        if contact and (connection := dial(contact.places, contact.secret, info.rank, _TRY, unproven)):
            return connection
        if time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(2 * pause, 0.2)
    if unproven:
        raise RendezvousError(
            f"rank {info.rank} did not find rank 0 of {info.launcher}'s job: what answers at "
            f"{', '.join(sorted(unproven))} is not of this job: another program has that port, or the "
            "address is translated on the way (NAT), which unilaunch does not support: let the hosts reach each other "
            "at their own addresses"
        )
    raise RendezvousError(
        f"rank {info.rank} did not find rank 0 of {info.launcher}'s job {board.advice} (--timeout gives it longer)"
    )


class TcpPeers(Peers):
    """Agreements over the connections to rank 0. The messages are JSON, never a pickle.

    Args:
        info: The launcher info.
        connections: On rank 0, the connections to every other rank; on the others, the connection to rank 0.
        board: Where the ranks found rank 0.
    """

    calls = OWN

    def __init__(self, info: LauncherInfo, connections: dict[int, socket.socket], board: Board) -> None:
        self.info, self.rank, self.size = info, info.rank, info.size
        self.connections = connections
        self.board = board

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        word = self.calls.begin(Operation.AGREE)
        message = json.dumps([word, value]).encode()
        if self.rank:
            _send(self.connections[0], message)
            return self.calls.agreed(
                self.rank, word, _read_values(_receive(self.connections[0], 0, _LARGEST * self.size))
            )
        others = [_receive(self.connections[rank], rank, _LARGEST) for rank in range(1, self.size)]
        answer = b"[" + b",".join([message, *others]) + b"]"
        for rank in range(1, self.size):
            _send(self.connections[rank], answer)
        return self.calls.agreed(self.rank, word, _read_values(answer))

    @override
    def collectives(self) -> Collectives:
        own_processor = (self.info.local_size or self.size) <= (os.cpu_count() or 1)
        collectives = TcpCollectives(self.rank, dict(self._mesh()), _SPIN if own_processor else 0.0)
        collectives.calls = self.calls
        return collectives

    @override
    def leave(self) -> None:
        self.disconnect()
        self.board.finish()

    def disconnect(self) -> None:
        """Close the connections; the ranks communicate in another way from now on."""
        for connection in self.connections.values():
            with suppress(OSError):  # the program may have closed every descriptor
                connection.close()

    def _mesh(self) -> Iterator[tuple[int, socket.socket]]:
        """Connect every two ranks: the higher rank connects to the lower rank, which has its own secret."""
        listener, contact = listen_for_ranks(self.info)
        with listener:
            contacts = [Contact.parse(str(text)) for text in self.share(contact.text)]
            deadline = time.monotonic() + _MESH  # not before: `share` waits for the slowest rank
            for rank, other in enumerate(contacts[: self.rank]):
                left = deadline - time.monotonic()
                connection = dial(other.places, other.secret, self.rank, left)
                if connection is None:
                    where = ", ".join(f"{address} port {port}" for address, port in other.places)
                    raise RendezvousError(f"rank {self.rank} did not reach rank {rank} at {where}")
                yield rank, connection
            higher = set(range(self.rank + 1, self.size))
            yield from accept_ranks(listener, higher, contact.secret, deadline).items()


def _read_values(message: bytes) -> list[JsonValue]:
    try:
        return cast("list[JsonValue]", json.loads(message))
    except (ValueError, RecursionError):
        raise PeerLostError(
            "a rank has sent a message that is not JSON: do all hosts run the same version of unilaunch?"
        ) from None


def _send(connection: socket.socket, message: bytes) -> None:
    try:
        connection.sendall(_SIZE.pack(len(message)) + message)
    except OSError as error:
        raise PeerLostError(f"a rank is lost, and the job ends: {error.strerror}") from None


def _receive(connection: socket.socket, rank: int, largest: int) -> bytes:
    try:
        (size,) = _SIZE.unpack(_read(connection, _SIZE.size))
        if size <= largest:
            return _read(connection, size)
        reason = f"it announces a message of {size} bytes, and {largest} are allowed"
    except (OSError, PeerLostError):
        reason = "its own log says why"
    raise PeerLostError(f"rank {rank} is lost, and the job ends: {reason}")


def _read(connection: socket.socket, size: int) -> bytes:
    pieces: list[bytes] = []
    left = size
    while left:
        piece = connection.recv(min(left, 1 << 20))
        if not piece:
            raise PeerLostError("the connection was closed")
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


class _Piece(Record, frozen=False):
    """Bytes in transit: the first *done* bytes have been transferred.

    Attributes:
        view: Of a header, or of the caller's array.
        header: Of a header that is received: what it must be.
    """

    view: memoryview
    header: bytes = b""
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
        self.word = 0  # of the newest call
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
        self.word = self.calls.begin(Operation.ALL_REDUCE)
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
        self.word = self.calls.begin(Operation.EXCHANGE)
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
        self.word = self.calls.begin(Operation.BROADCAST)
        if self.rank == root:
            self._wait([piece for other in self.connections for piece in self._send(buffer, other)])
        else:
            self._wait(self._receive(buffer, root))

    @override
    def barrier(self) -> None:
        self.word = self.calls.begin(Operation.BARRIER)
        byte = bytearray(1)
        if self.rank:
            self._wait([*self._send(byte, 0), *self._receive(byte, 0)])
            return
        self._wait([piece for other in self.connections for piece in self._receive(bytearray(1), other)])
        self._wait([piece for other in self.connections for piece in self._send(byte, other)])

    def _send(self, buffer: Any, rank: int) -> list[_Piece]:
        view = _bytes_of(buffer)
        header = self._header(buffer, view.nbytes)
        pieces = [_Piece(memoryview(header)), _Piece(view)] if view.nbytes else []
        self.sending[rank].extend(pieces)
        return pieces

    def _receive(self, buffer: Any, rank: int) -> list[_Piece]:
        view = _bytes_of(buffer)
        header = self._header(buffer, view.nbytes)
        pieces = [_Piece(memoryview(bytearray(_HEADER.size)), header), _Piece(view)] if view.nbytes else []
        self.receiving[rank].extend(pieces)
        return pieces

    def _header(self, buffer: Any, size: int) -> bytes:
        """Return what stands before a message: the type of its numbers, the call's word, and how many bytes follow."""
        kind = memoryview(buffer).format[-1]
        return _HEADER.pack(ord(_SAME_AS.get(kind, kind)) << 16 | self.word, size)

    def _wait(self, pieces: Sequence[_Piece]) -> None:
        while any(piece.left for piece in pieces):
            self.move(block=True)

    def move(self, *, block: bool) -> None:
        """Send and receive as much as the sockets allow, in the order of the requests; *block*: wait for a socket."""
        if self._try() or not block:
            return
        until = time.perf_counter() + self.spin
        while time.perf_counter() < until:
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
                count = self.connections[rank].sendmsg([piece.view[piece.done :] for piece in islice(queue, _AT_ONCE)])
            except BlockingIOError:
                break
            moved = True
            _move_on(queue, count)
        return moved

    def _pull(self, rank: int) -> bool:
        queue, moved = self.receiving[rank], False
        while queue:
            views = [piece.view[piece.done :] for piece in islice(queue, _AT_ONCE)]
            try:
                count = self.connections[rank].recvmsg_into(views)[0]
            except BlockingIOError:
                break
            if not count:
                raise ConnectionResetError
            moved = True
            for header in _move_on(queue, count):
                if header.view != header.header:
                    raise self._mixed_up(rank, header)
        return moved

    def _mixed_up(self, rank: int, header: _Piece) -> MixedCallsError:
        (word, _), (others_word, _) = _HEADER.unpack(header.header), _HEADER.unpack(header.view)
        return self.calls.mixed_up(self.rank, word & _WORD, rank, others_word & _WORD)


def _move_on(queue: deque[_Piece], count: int) -> list[_Piece]:
    """Note that *count* bytes of a queue have been transferred; return the received headers that are whole now."""
    headers = []
    while queue:
        piece = queue[0]
        moved = min(count, piece.left)
        piece.done += moved
        count -= moved
        if piece.left:
            break
        if piece.header:
            headers.append(piece)
        queue.popleft()
    return headers


def _bytes_of(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if view.format.startswith("Z"):  # complex numbers, which a memoryview cannot cast: a view of both their parts
        view = memoryview(buffer.view(buffer.real.dtype))
    return view.cast("B") if view.nbytes else memoryview(b"")


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
