"""What the ranks' guards tell, whichever host they are on and whether or not it shares a file system."""

import hmac
import json
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from unilaunch.watch.line import notice_silence

#: Why a rank fell silent, if it was not alone.
HOST_LOST = "its host does not answer"
_LARGEST = 1 << 26  # bytes of one message


class Inbox:
    """A listening socket, and what has come in over it.

    Attributes:
        ranks: Everything that a rank has told, by rank; a later word takes the place of an earlier one.
        moved: When a rank last told of progress, in seconds of `time.monotonic`.
        failed: The ranks that told of a failure, in the order in which they did.
        silent: Why a rank fell silent without having told how it ended, by rank.
    """

    def __init__(self, listener: socket.socket, token: str) -> None:
        self.listener = listener
        self.listener.setblocking(False)
        self.token = token
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.unread: dict[socket.socket, bytearray] = {}
        self.rank_of: dict[socket.socket, int] = {}
        self.ranks: dict[int, dict[str, Any]] = {}
        self.moved: dict[int, float] = {}
        self.failed: list[int] = []
        self.silent: dict[int, str] = {}

    def take(self, patience: float) -> None:
        """Take what comes in, for at most *patience* seconds or until something has."""
        for key, _ in self.selector.select(patience):
            if key.fileobj is self.listener:
                self._accept()
            else:
                self._read(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered

    def tell_all(self, **order: Any) -> None:
        """Send *order* to every guard that can still be reached."""
        for connection, rank in list(self.rank_of.items()):
            if rank >= 0:
                with suppress(OSError):  # a few bytes: they fit, or nobody is there to read them
                    connection.send(json.dumps(order).encode() + b"\n")

    @property
    def connected(self) -> set[int]:
        """The ranks whose line stands."""
        return {rank for rank in self.rank_of.values() if rank >= 0}

    def close(self) -> None:
        """Hang up."""
        for connection in self.unread:
            connection.close()
        self.selector.close()
        self.listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self.listener.accept()
            connection.setblocking(False)
            notice_silence(connection)
            self.unread[connection] = bytearray()
            self.selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        reason = "its processes have gone"
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            data, reason = b"", f"{HOST_LOST}: {error.strerror}"
        unread = self.unread[connection]
        unread += data
        while (end := unread.find(b"\n")) >= 0:
            message, unread[: end + 1] = bytes(unread[:end]), b""
            if not self._understand(connection, message):
                data = b""
                break
        if not data or len(unread) > _LARGEST:
            self._hang_up(connection, reason)

    def _understand(self, connection: socket.socket, message: bytes) -> bool:
        """Keep a rank's message; the first one must hold the token, and the second must name the rank."""
        try:
            said: dict[str, Any] = json.loads(message)
            if connection not in self.rank_of:
                self.rank_of[connection] = -1
                return hmac.compare_digest(str(said["token"]), self.token)
            if self.rank_of[connection] < 0:
                self.rank_of[connection] = int(said["rank"])
            rank = self.rank_of[connection]
            self.ranks.setdefault(rank, {}).update(said)
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        if "stack" not in said:
            self.moved[rank] = time.monotonic()
        if "failure" in said and rank not in self.failed:
            self.failed.append(rank)
        return True

    def _hang_up(self, connection: socket.socket, reason: str) -> None:
        self.selector.unregister(connection)
        del self.unread[connection]
        rank = self.rank_of.pop(connection, -1)
        if rank >= 0 and "exit_code" not in self.ranks[rank]:
            self.silent.setdefault(rank, reason)
        connection.close()


@dataclass(frozen=True, slots=True)
class Listening:
    """Where guards can call.

    Attributes:
        listener: The socket.
        token: The secret that a caller must know.
        where: "ADDRESS,ADDRESS PORT TOKEN", for the callers.
    """

    listener: socket.socket
    token: str
    where: str


def listen(hosts: Sequence[str], *, several: bool) -> Listening:
    """Listen for guards.

    Args:
        hosts: Hosts of the job: the address on the way to them is the first that a guard is to try.
        several: There are other hosts than this one; or else nobody from outside can call.
    """
    listener = socket.create_server(("" if several else "127.0.0.1", 0), backlog=4096)
    token = secrets.token_hex(16)
    addresses = _own_addresses(hosts) if several else ["127.0.0.1"]
    return Listening(listener, token, f"{','.join(addresses)} {listener.getsockname()[1]} {token}")


def _own_addresses(hosts: Sequence[str]) -> list[str]:
    """Return this host's addresses, first the one on the way to the job's hosts."""
    import psutil

    found = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]
    return list(dict.fromkeys([*_towards(hosts), *found])) or ["127.0.0.1"]


def _towards(hosts: Sequence[str]) -> list[str]:
    for host in hosts:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            address = str(probe.getsockname()[0])
            if not address.startswith("127."):
                return [address]
    return []
