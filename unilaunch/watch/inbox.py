"""What the ranks' guards tell, whichever host they are on and whether or not it shares a file system."""

import json
import selectors
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from unilaunch import sockets
from unilaunch.handshake import new_secret
from unilaunch.watch.line import LARGEST, is_unanswered, notice_silence

#: Why a rank fell silent, if it was not alone.
HOST_LOST = "its host does not answer"


class Inbox:
    """A listening socket, and what the guards of this start have told over it.

    Args:
        listener: The socket.
        secret: What a caller must know before anything else is read.

    Attributes:
        host_timeout: Seconds for which a host may be silent.
        ranks: Everything that a rank has told, by rank; a later word takes the place of an earlier one.
        moved: When each rank last made progress, in seconds of `time.monotonic`.
        failed: The ranks that told of a failure, in the order in which they did.
        silent: Why a rank fell silent without having told how it ended, by rank.
    """

    def __init__(self, listener: socket.socket, secret: bytes, host_timeout: float) -> None:
        self.host_timeout = host_timeout
        self.selector = selectors.DefaultSelector()
        self.door = sockets.Door(listener, secret, self.selector)
        self.unread: dict[socket.socket, bytearray] = {}
        self.rank_of: dict[socket.socket, int] = {}  # -1 until the guard has named its rank
        self.ranks: dict[int, dict[str, Any]] = {}
        self.moved: dict[int, float] = {}
        self.failed: list[int] = []
        self.silent: dict[int, str] = {}
        self.meeting = ""  # where rank 0 listens for the others
        self.asking: set[socket.socket] = set()  # those who wait for that word

    def take(self, patience: float) -> None:
        """Take what comes in, for at most *patience* seconds or until something has."""
        for key, _ in self.selector.select(patience):
            if key.data is not self.door:
                self._read(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
            elif guard := self.door.ready(key.fileobj):
                self._welcome(guard[0])
        self.door.tick()

    def tell_all(self, **order: Any) -> None:
        """Send *order* to every guard that can still be reached."""
        self.tell(self.connected, **order)

    def tell(self, ranks: Collection[int], **order: Any) -> None:
        """Send *order* to the guards of *ranks* that can still be reached."""
        for connection, rank in list(self.rank_of.items()):
            if rank in ranks:
                with suppress(OSError):  # a few bytes: they fit, or nobody is there to read them
                    connection.send(json.dumps(order).encode() + b"\n")

    @property
    def connected(self) -> set[int]:
        """The ranks whose line stands."""
        return {rank for rank in self.rank_of.values() if rank >= 0}

    @property
    def unanswered(self) -> bool:
        """A rank's host has not answered for some seconds: its line will break, or it answers again."""
        return any(rank >= 0 and is_unanswered(connection) for connection, rank in self.rank_of.items())

    def close(self) -> None:
        """Hang up."""
        for connection in self.unread:
            connection.close()
        self.door.close()
        self.selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _welcome(self, connection: socket.socket) -> None:
        notice_silence(connection, self.host_timeout)
        # An order too must not wait for ever; with this the number of probes no longer counts.
        wait = max(1.0, self.host_timeout - 1.5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * wait))
        self.unread[connection] = bytearray()
        self.rank_of[connection] = -1
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
        searched = len(unread)
        unread += data
        while (end := unread.find(b"\n", searched)) >= 0:
            message, unread[: end + 1], searched = bytes(unread[:end]), b"", 0
            if not self._understand(connection, message):
                data = b""
                break
        if not data or len(unread) > LARGEST:
            self._hang_up(connection, reason)

    def _understand(self, connection: socket.socket, message: bytes) -> bool:
        """Keep a rank's message; the first one must name the rank."""
        try:
            said: dict[str, Any] = json.loads(message)
            if "rank 0" in said:
                self._meet(connection, said["rank 0"])
                return True
            if self.rank_of[connection] < 0:
                self.rank_of[connection] = int(said["rank"])
            rank = self.rank_of[connection]
            age = float(said.pop("age", 0.0))
            self.ranks.setdefault(rank, {}).update(said)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
        if "stack" not in said:
            self.moved[rank] = max(self.moved.get(rank, 0.0), time.monotonic() - age)
        if "failure" in said and rank not in self.failed:
            self.failed.append(rank)
        return True

    def _meet(self, connection: socket.socket, text: str | None) -> None:
        """Keep where rank 0 listens; tell it whoever asks (None), once it is known."""
        if text is None:
            self.asking.add(connection)
        else:
            self.meeting = text
        while self.meeting and self.asking:
            with suppress(OSError):
                self.asking.pop().send(json.dumps({"rank 0": self.meeting}).encode() + b"\n")

    def _hang_up(self, connection: socket.socket, reason: str) -> None:
        self.selector.unregister(connection)
        self.asking.discard(connection)
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
        secret: What a caller must know.
        where: "ADDRESS,ADDRESS PORT SECRET SECONDS", for the callers.
    """

    listener: socket.socket
    secret: bytes
    where: str


def listen(hosts: Sequence[str], *, several: bool, host_timeout: float) -> Listening:
    """Listen for guards.

    Args:
        hosts: Hosts of the job: the address on the way to them is the first that a guard is to try.
        several: There are other hosts than this one; or else nobody from outside can call.
        host_timeout: Seconds for which a host may be silent.
    """
    listener = sockets.listen(0, several=several)
    secret = new_secret()
    addresses, port = sockets.own_addresses(hosts, several=several), listener.getsockname()[1]
    return Listening(listener, secret, f"{','.join(addresses)} {port} {secret.hex()} {host_timeout:g}")
