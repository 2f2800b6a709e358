"""The ranks' agreements without MPI, for launchers that bring none (torchrun, msrun, a plain srun): a star of sockets.

Rank 0 listens and every other rank connects. Nobody could tell the others a port, so it follows from the run's name: a
short list of ports, of which rank 0 binds the first that is free, and both sides say which run they belong to.
"""

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from itertools import product
from typing import cast

from pydantic import JsonValue
from typing_extensions import override

from unilaunch.backend import Collectives, Peers
from unilaunch.errors import PeerLostError, RendezvousError
from unilaunch.world import Found

_PORTS = range(20000, 32768)  # below those that Linux gives to whoever asks for any
_TRIES = 16
_HELLO = struct.Struct("!32sI")  # which run, which rank
_SIZE = struct.Struct("!Q")


def join(found: Found, patience: float) -> "TcpPeers":
    """Connect the ranks and return their table.

    Args:
        found: What the launcher says; its run_id and heads are used.
        patience: Seconds to wait for the other ranks.

    Raises:
        RendezvousError: The others were not there in time.
    """
    token = sha256(f"unilaunch {found.run_id}".encode()).digest()
    deadline = time.monotonic() + patience
    if found.rank == 0:
        return TcpPeers(0, found.size, _gather(found, token, deadline), token)
    return TcpPeers(found.rank, found.size, {0: _reach(found, token, deadline)}, token)


def candidate_ports(token: bytes) -> list[int]:
    """Return the ports at which rank 0 of a run may listen, first the likeliest."""
    words = struct.unpack(f"!{_TRIES}H", token[: 2 * _TRIES])
    return [_PORTS[word % len(_PORTS)] for word in words]


def listen(port: int) -> socket.socket:
    """Return a socket that listens on every address of this host, of both IP versions where there are two."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=4096)


def accept_ranks(
    listener: socket.socket, expected: set[int], token: bytes, deadline: float
) -> dict[int, socket.socket]:
    """Return the connection of every expected rank; a stranger's is closed.

    Raises:
        RendezvousError: Some did not come before *deadline*, in seconds of `time.monotonic`.
    """
    connections: dict[int, socket.socket] = {}
    while missing := expected - set(connections):
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            some = ", ".join(map(str, sorted(missing)[:10]))
            raise RendezvousError(
                f"{len(missing)} of {len(expected)} ranks did not come in time (rank {some}): were all of them "
                "started, and can their hosts reach each other? --timeout gives them longer"
            ) from None
        rank = _greet(connection, token)
        if rank in missing:
            connections[rank] = connection
        else:
            connection.close()
    return connections


def connect(address: tuple[str, int], rank: int, token: bytes, timeout: float) -> socket.socket | None:
    """Return a connection to the listener of the same run there; None if there is none."""
    try:
        connection = socket.create_connection(address, timeout)
    except OSError:
        return None
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_HELLO.pack(token, rank))
        if _read(connection, len(token)) == token:
            connection.settimeout(None)
            return connection
    except (OSError, PeerLostError):
        pass
    connection.close()
    return None


def _greet(connection: socket.socket, token: bytes) -> int:
    """Return the rank at the other end; -1 if it is none of this run."""
    try:
        connection.settimeout(2.0)
        said, rank = _HELLO.unpack(_read(connection, _HELLO.size))
        if said != token:
            return -1
        connection.sendall(token)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        return int(rank)
    except (OSError, PeerLostError):
        return -1


def _gather(found: Found, token: bytes, deadline: float) -> dict[int, socket.socket]:
    for port in candidate_ports(token):
        with suppress(OSError), listen(port) as listener:
            return accept_ranks(listener, set(range(1, found.size)), token, deadline)
    raise RendezvousError(f"rank 0 cannot listen on any of the ports {candidate_ports(token)}: all of them are taken")


def _reach(found: Found, token: bytes, deadline: float) -> socket.socket:
    hosts = ("127.0.0.1",) if found.local_size == found.size else found.heads
    pause = 0.01
    while time.monotonic() < deadline:
        for host in hosts:
            for address, port in product(_addresses(host), candidate_ports(token)):
                if connection := connect((address, port), found.rank, token, timeout=2.0):
                    return connection
        time.sleep(pause)
        pause = min(2 * pause, 0.2)
    raise RendezvousError(
        f"rank {found.rank} did not reach rank 0 at {' or '.join(hosts)}, ports {candidate_ports(token)}: was rank 0 "
        f"started, and is that its host, as {found.launcher} says? --timeout gives it longer"
    )


@cache
def _addresses(host: str) -> list[str]:
    """Return a host's addresses; asked for once, since a resolver that does not know the name can take its time."""
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, None)))
    except OSError:
        return []


class TcpPeers(Peers):
    """Agreements over rank 0. JSON travels, never a pickle."""

    def __init__(self, rank: int, size: int, connections: dict[int, socket.socket], token: bytes) -> None:
        self.rank = rank
        self.size = size
        self.connections = connections
        self.token = token

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        message = json.dumps(value).encode()
        if self.rank:
            _send(self.connections[0], message)
            return cast("list[JsonValue]", json.loads(_receive(self.connections[0], 0)))
        others = [_receive(self.connections[rank], rank) for rank in range(1, self.size)]
        answer = b"[" + b",".join([message, *others]) + b"]"
        for rank in range(1, self.size):
            _send(self.connections[rank], answer)
        return cast("list[JsonValue]", json.loads(answer))

    @override
    def collectives(self) -> Collectives:
        from unilaunch.rank.tcp_collectives import TcpCollectives

        return TcpCollectives(self.rank, dict(self._mesh()))

    def _mesh(self) -> Iterator[tuple[int, socket.socket]]:
        """Connect every two ranks: the higher one calls, at the address by which rank 0 knows the lower one."""
        deadline = time.monotonic() + 60.0
        with listen(0) as listener:
            known = cast("list[list[str]]", self.share([self._seen(), str(listener.getsockname()[1])]))
            for rank in range(self.rank):
                address, port = known[rank]
                host = address or self.connections[0].getpeername()[0]
                connection = connect((host, int(port)), self.rank, self.token, deadline - time.monotonic())
                if connection is None:
                    raise RendezvousError(f"rank {self.rank} did not reach rank {rank} at {host}, port {port}")
                yield rank, connection
            yield from accept_ranks(listener, set(range(self.rank + 1, self.size)), self.token, deadline).items()

    def _seen(self) -> str:
        """Return this host's address on the way to rank 0; nothing on rank 0, which each rank knows itself."""
        return str(self.connections[0].getsockname()[0]) if self.rank else ""


def _send(connection: socket.socket, message: bytes) -> None:
    try:
        connection.sendall(_SIZE.pack(len(message)) + message)
    except OSError as error:
        raise PeerLostError(f"a rank has gone, and the job with it: {error.strerror}") from None


def _receive(connection: socket.socket, rank: int) -> bytes:
    try:
        (size,) = _SIZE.unpack(_read(connection, _SIZE.size))
        return _read(connection, size)
    except (OSError, PeerLostError):
        raise PeerLostError(f"rank {rank} has gone, and the job with it: its own log says why") from None


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
