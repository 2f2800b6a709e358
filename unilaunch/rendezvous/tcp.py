"""The ranks' agreements over sockets: each rank has one connection, to rank 0.

So the ranks can agree before MPI is initialised, and under launchers without MPI. Each rank reads rank 0's address and
the secret of this attempt from a board.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from selectors import DefaultSelector
from typing import cast

from unilaunch.errors import PeerLostError, RendezvousError
from unilaunch.interfaces.backend import Collectives, Peers
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.json_value import JsonValue
from unilaunch.machine.connections import Door, call
from unilaunch.overriding import override
from unilaunch.rendezvous.boards import Board, Contact, listen_for_ranks

_SIZE = struct.Struct("!Q")
#: Most bytes of one rank's value; rank 0's answer holds the values of all ranks.
_LARGEST = 1 << 26
_TRY = 5.0  # seconds for one try to reach rank 0
_TICK = 0.2
_MESH = 60.0  # seconds in which every two ranks connect, once all ranks have come
_SPIN = 0.0001  # seconds for which a rank that has a processor for itself looks for a message before it sleeps


def join(found: LauncherInfo, patience: float, board: Board) -> "TcpPeers":
    """Connect the ranks and return the peers.

    Args:
        found: The launcher info.
        patience: Seconds to wait for the other ranks.
        board: Where they find rank 0.

    Raises:
        RendezvousError: Some ranks did not connect in time.
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
    """Return the connection of every expected rank; other connections do not delay a rank.

    Raises:
        RendezvousError: Some ranks did not connect before *deadline*, in seconds of `time.monotonic`.
    """
    connections: dict[int, socket.socket] = {}
    missing = set(expected)

    def welcome(connection: socket.socket, rank: int) -> None:
        connection.setblocking(True)
        connections[rank] = connection
        missing.remove(rank)

    with DefaultSelector() as selector:
        door = Door(listener, secret, selector, welcome, missing)
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
                door.tick()
        finally:
            door.close()
    return connections


def _reach(found: LauncherInfo, board: Board, deadline: float) -> socket.socket:
    pause, unproven = 0.01, set[str]()
    while True:
        meeting = board.find()  # a launcher's store waits here for rank 0
        if meeting and (connection := call(meeting.places, meeting.secret, found.rank, _TRY, unproven)):
            return connection
        if time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(2 * pause, 0.2)
    if unproven:
        raise RendezvousError(
            f"rank {found.rank} did not find rank 0 of {found.launcher}'s job: what answers at "
            f"{', '.join(sorted(unproven))} is not of this job: another program has that port, or the "
            "address is translated on the way (NAT), which unilaunch does not support: let the hosts reach each other "
            "at their own addresses"
        )
    raise RendezvousError(
        f"rank {found.rank} did not find rank 0 of {found.launcher}'s job {board.advice} --timeout gives it longer"
    )


class TcpPeers(Peers):
    """Agreements over the connections to rank 0. The messages are JSON, never a pickle.

    Args:
        found: The launcher info.
        connections: On rank 0, the connections to every other rank; on the others, the connection to rank 0.
        board: Where the ranks found rank 0.
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
            return _read_values(_receive(self.connections[0], 0, _LARGEST * self.size))
        others = [_receive(self.connections[rank], rank, _LARGEST) for rank in range(1, self.size)]
        answer = b"[" + b",".join([message, *others]) + b"]"
        for rank in range(1, self.size):
            _send(self.connections[rank], answer)
        return _read_values(answer)

    @override
    def collectives(self) -> Collectives:
        from unilaunch.rendezvous.tcp_collectives import TcpCollectives

        own_processor = (self.found.local_size or self.size) <= (os.cpu_count() or 1)
        return TcpCollectives(self.rank, dict(self._mesh()), _SPIN if own_processor else 0.0)

    @override
    def leave(self) -> None:
        self.disconnect()
        self.board.finish()

    def disconnect(self) -> None:
        """Close the connections; the ranks communicate in another way from now on."""
        for connection in self.connections.values():
            connection.close()

    def _mesh(self) -> Iterator[tuple[int, socket.socket]]:
        """Connect every two ranks: the higher rank connects to the lower rank, which has its own secret."""
        listener, meeting = listen_for_ranks(self.found)
        with listener:
            meetings = [Contact.parse(str(text)) for text in self.share(meeting.text)]
            deadline = time.monotonic() + _MESH  # not before: `share` waits for the slowest rank
            for rank, other in enumerate(meetings[: self.rank]):
                left = deadline - time.monotonic()
                connection = call(other.places, other.secret, self.rank, left)
                if connection is None:
                    where = ", ".join(f"{address} port {port}" for address, port in other.places)
                    raise RendezvousError(f"rank {self.rank} did not reach rank {rank} at {where}")
                yield rank, connection
            higher = set(range(self.rank + 1, self.size))
            yield from accept_ranks(listener, higher, meeting.secret, deadline).items()


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
