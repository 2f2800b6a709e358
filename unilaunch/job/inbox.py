"""What the ranks tell the launching process, whichever host they are on and whether or not it shares a file system."""

import hmac
import json
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import psutil

#: The variable in which a rank finds the inbox; `unilaunch.rank.report` reads it.
VARIABLE = "_UNILAUNCH_REPORT_TO"
_LARGEST = 1 << 26  # bytes of one message


class Inbox:
    """A listening socket, and what has come in: messages by rank, and when a rank that had said hello fell silent."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.listener = socket.create_server(("" if hosts else "127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.token = secrets.token_hex(16)
        self.addresses = _own_addresses(hosts) if hosts else ["127.0.0.1"]
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.unread: dict[socket.socket, bytearray] = {}
        self.rank_of: dict[socket.socket, int] = {}
        self.ranks: dict[int, dict[str, Any]] = {}
        self.silent: dict[int, float] = {}

    def variables(self) -> dict[str, str]:
        """Return what the ranks must find in their environment."""
        return {VARIABLE: f"{','.join(self.addresses)} {self.listener.getsockname()[1]} {self.token}"}

    def take(self, patience: float) -> None:
        """Take what comes in, for at most *patience* seconds or until something has."""
        for key, _ in self.selector.select(patience):
            if key.fileobj is self.listener:
                self._accept()
            else:
                self._read(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for connection in self.unread:
            connection.close()
        self.selector.close()
        self.listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self.listener.accept()
            connection.setblocking(False)
            self.unread[connection] = bytearray()
            self.selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        unread = self.unread[connection]
        unread += data
        while (end := unread.find(b"\n")) >= 0:
            message, unread[: end + 1] = bytes(unread[:end]), b""
            if not self._understand(connection, message):
                data = b""
                break
        if not data or len(unread) > _LARGEST:
            self._hang_up(connection)

    def _understand(self, connection: socket.socket, message: bytes) -> bool:
        """Keep a rank's message; the first one must hold the token, and the second must name the rank."""
        try:
            said: dict[str, Any] = json.loads(message)
            if connection not in self.rank_of:
                self.rank_of[connection] = -1
                return hmac.compare_digest(str(said["token"]), self.token)
            if self.rank_of[connection] < 0:
                self.rank_of[connection] = int(said["rank"])
            self.ranks.setdefault(self.rank_of[connection], {}).update(said)
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return True

    def _hang_up(self, connection: socket.socket) -> None:
        self.selector.unregister(connection)
        del self.unread[connection]
        rank = self.rank_of.pop(connection, -1)
        if rank >= 0:
            self.silent.setdefault(rank, time.time())
        connection.close()


def _own_addresses(hosts: Sequence[str]) -> list[str]:
    """Return this host's addresses, first the one on the way to the job's hosts."""
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
