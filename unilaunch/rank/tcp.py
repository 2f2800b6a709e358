"""The ranks' agreements over sockets: a star around rank 0.

So the ranks agree before MPI is initialised, and under launchers that bring no MPI. Each rank finds rank 0, and the
secret of this start, on a board.
"""

import json
import socket
import struct
import time
from collections.abc import Iterator
from selectors import DefaultSelector
from typing import cast

from typing_extensions import override

from unilaunch import sockets
from unilaunch.backend import Collectives, Peers
from unilaunch.errors import PeerLostError, RendezvousError
from unilaunch.json_value import JsonValue
from unilaunch.rank.board import Board, Meeting, open_meeting
from unilaunch.world import LauncherInfo

_SIZE = struct.Struct("!Q")
#: Bytes of one rank's value at most; rank 0's answer holds every rank's.
_LARGEST = 1 << 26
_TRY = 5.0  # seconds for one try to reach rank 0
_TICK = 0.2


def join(found: LauncherInfo, patience: float, board: Board) -> "TcpPeers":
    """Connect the ranks and return their table.

    Args:
        found: What the launcher says.
        patience: Seconds to wait for the other ranks.
        board: Where they meet.

    Raises:
        RendezvousError: The others were not there in time.
    """
    try:
        if found.rank:
            return TcpPeers(found, {0: _reach(found, board, time.monotonic() + patience)}, board)
        listener, secret = board.post()
        with listener:
            deadline = time.monotonic() + patience
            connections = accept_ranks(listener, set(range(1, found.size)), secret, deadline)
        return TcpPeers(found, connections, board)
    except BaseException:
        board.finish()
        raise
    finally:
        board.close()


def accept_ranks(
    listener: socket.socket, expected: set[int], secret: bytes, deadline: float
) -> dict[int, socket.socket]:
    """Return the connection of every expected rank; whoever else calls delays nobody.

    Raises:
        RendezvousError: Some did not come before *deadline*, in seconds of `time.monotonic`.
    """
    connections: dict[int, socket.socket] = {}
    missing = set(expected)
    with DefaultSelector() as selector:
        door = sockets.Door(listener, secret, selector)
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
                    if came := door.ready(key.fileobj):
                        _seat(connections, *came, missing)
                door.tick()
        finally:
            door.close()
    return connections


def _seat(connections: dict[int, socket.socket], connection: socket.socket, rank: int, missing: set[int]) -> None:
    """Keep the connection of a rank that is missing, which it is no more; one that comes again is not let in."""
    if rank in missing:
        missing.remove(rank)
        connection.setblocking(True)
        connections[rank] = connection
    else:
        connection.close()


def _reach(found: LauncherInfo, board: Board, deadline: float) -> socket.socket:
    pause = 0.01
    while True:
        meeting = board.read()  # a launcher's own store waits here for rank 0
        if meeting and (connection := sockets.call(meeting.places, meeting.secret, found.rank, _TRY)):
            return connection
        if time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(2 * pause, 0.2)
    raise RendezvousError(
        f"rank {found.rank} did not find rank 0 of {found.launcher}'s job {board.advice} --timeout gives it longer"
    )


class TcpPeers(Peers):
    """Agreements over a star of sockets. JSON travels, never a pickle.

    Args:
        found: What the launcher says.
        connections: To every other rank on rank 0; to rank 0 on the others.
        board: Where the ranks met.
    """

    def __init__(self, found: LauncherInfo, connections: dict[int, socket.socket], board: Board) -> None:
        self.found, self.rank, self.size = found, found.rank, found.size
        self.connections = connections
        self.board = board

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        message = json.dumps(value).encode()
        if self.rank:
            _send(self.connections[0], message)
            return cast("list[JsonValue]", _read_json(_receive(self.connections[0], 0, _LARGEST * self.size)))
        others = [_receive(self.connections[rank], rank, _LARGEST) for rank in range(1, self.size)]
        answer = b"[" + b",".join([message, *others]) + b"]"
        for rank in range(1, self.size):
            _send(self.connections[rank], answer)
        return cast("list[JsonValue]", _read_json(answer))

    @override
    def collectives(self) -> Collectives:
        from unilaunch.rank.tcp_collectives import TcpCollectives

        return TcpCollectives(self.rank, dict(self._mesh()))

    @override
    def leave(self) -> None:
        self.disconnect()
        self.board.finish()

    def disconnect(self) -> None:
        """Hang up; the ranks go on in another way."""
        for connection in self.connections.values():
            connection.close()

    def _mesh(self) -> Iterator[tuple[int, socket.socket]]:
        """Connect every two ranks: the higher one calls the lower one, whose secret is its own."""
        deadline = time.monotonic() + 60.0
        listener, meeting = open_meeting(self.found)
        with listener:
            meetings = [Meeting.read(str(text)) for text in self.share(meeting.text)]
            for rank, other in enumerate(meetings[: self.rank]):
                left = deadline - time.monotonic()
                connection = sockets.call(other.places, other.secret, self.rank, left)
                if connection is None:
                    where = ", ".join(f"{address} port {port}" for address, port in other.places)
                    raise RendezvousError(f"rank {self.rank} did not reach rank {rank} at {where}")
                yield rank, connection
            higher = set(range(self.rank + 1, self.size))
            yield from accept_ranks(listener, higher, meeting.secret, deadline).items()


def _read_json(message: bytes) -> JsonValue:
    try:
        return cast("JsonValue", json.loads(message))
    except (ValueError, RecursionError):
        raise PeerLostError(
            "a rank has sent a message that is not JSON: do all hosts run the same version of unilaunch?"
        ) from None


def _send(connection: socket.socket, message: bytes) -> None:
    try:
        connection.sendall(_SIZE.pack(len(message)) + message)
    except OSError as error:
        raise PeerLostError(f"a rank has gone, and the job with it: {error.strerror}") from None


def _receive(connection: socket.socket, rank: int, largest: int) -> bytes:
    try:
        (size,) = _SIZE.unpack(_read(connection, _SIZE.size))
        if size <= largest:
            return _read(connection, size)
        reason = f"it announces a message of {size} bytes, and {largest} are allowed"
    except (OSError, PeerLostError):
        reason = "its own log says why"
    raise PeerLostError(f"rank {rank} has gone, and the job with it: {reason}")


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
