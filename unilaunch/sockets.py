"""How processes of one job meet over sockets: calls, and a door through which only those come who know the secret."""

import errno
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, DefaultSelector
from typing import Any, cast

from unilaunch.addresses import FAMILIES, plain
from unilaunch.handshake import ANSWER_SIZE, WELCOME, Caller, Listener, NotProvenError

#: Seconds in which a caller must prove itself; others are served meanwhile.
_PATIENCE = 10.0
#: Callers that have not proven themselves; one more sends the oldest away. More than a job's own agents at once.
_STRANGERS = 1 << 14
#: Seconds without a look at new callers when this process has no file descriptor left.
_PAUSE = 0.2


@dataclass(slots=True)
class _Call:
    """A connection whose other end has not let this one in yet."""

    caller: Caller
    connected: bool = False
    proven: bool = False
    answer: bytes = b""


class Calls:
    """Calls to several places at once, of which the first that proves itself and lets this end in is taken.

    Args:
        places: Addresses and ports.
        secret: The secret of this start.
        identity: Who calls.
        selector: What the owner waits on.
        data: The `data` of the calls' entries there.
    """

    def __init__(
        self, places: Iterable[tuple[str, int]], secret: bytes, identity: int, selector: BaseSelector, data: Any
    ) -> None:
        self.selector, self.data = selector, data
        self.calls: dict[socket.socket, _Call] = {}
        for address, port in places:
            try:
                connection = socket.socket(FAMILIES[":" in address], socket.SOCK_STREAM)
            except OSError:  # this host has not that IP version
                continue
            connection.setblocking(False)
            connection.connect_ex((address, port))
            selector.register(connection, EVENT_WRITE, data)
            self.calls[connection] = _Call(Caller(secret, f"{plain(address)} {port}", identity))

    def __contains__(self, fileobj: object) -> bool:
        """Whether *fileobj* is a call under way."""
        return fileobj in self.calls

    def __len__(self) -> int:
        """Return how many calls are under way."""
        return len(self.calls)

    def ready(self, connection: socket.socket) -> socket.socket | None:
        """Go on with one call; return its connection once the listener has proven itself, and give up the others.

        The connection does not block, and stands in the selector for reading.
        """
        try:
            if not self._go_on(connection, self.calls[connection]):
                return None
        except BlockingIOError:
            return None
        except (OSError, NotProvenError):
            self._give_up(connection)
            return None
        del self.calls[connection]
        self.close()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _go_on(self, connection: socket.socket, call: _Call) -> bool:
        """Take the next step of the handshake; True after the last one."""
        if not call.connected:
            connection.send(call.caller.hello)
            call.connected = True
            self.selector.modify(connection, EVENT_READ, self.data)
            return False
        if call.proven:
            if connection.recv(len(WELCOME)) != WELCOME:
                raise NotProvenError
            return True
        data = connection.recv(ANSWER_SIZE - len(call.answer))
        call.answer += data
        if not data or len(call.answer) == ANSWER_SIZE:
            connection.send(call.caller.prove(call.answer))
            call.proven = True
        return False

    def close(self) -> None:
        """Give up every call."""
        for connection in list(self.calls):
            self._give_up(connection)

    def _give_up(self, connection: socket.socket) -> None:
        del self.calls[connection]
        self.selector.unregister(connection)
        connection.close()


def call(places: Iterable[tuple[str, int]], secret: bytes, identity: int, timeout: float) -> socket.socket | None:
    """Return a blocking connection to the first of *places* that proves itself; None if none does in *timeout* s."""
    deadline = time.monotonic() + timeout
    with DefaultSelector() as selector:
        calls = Calls(places, secret, identity, selector, None)
        try:
            while calls and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.fileobj in calls and (connection := calls.ready(cast("socket.socket", key.fileobj))):
                        connection.setblocking(True)
                        return connection
        finally:
            calls.close()
    return None


class Door:
    """A listening socket through which only those come who know the secret; strangers delay nobody.

    Args:
        listener: The socket; its port is part of the proofs.
        secret: The secret of this start.
        selector: What the owner waits on; `data` of each entry that belongs to the door is the door.
    """

    def __init__(self, listener: socket.socket, secret: bytes, selector: BaseSelector) -> None:
        self.listener, self.secret, self.selector = listener, secret, selector
        self.port = int(listener.getsockname()[1])
        self.strangers: dict[socket.socket, tuple[Listener, float]] = {}  # oldest first, each with its deadline
        self.closed_until: float | None = None
        listener.setblocking(False)
        selector.register(listener, EVENT_READ, self)

    def ready(self, fileobj: Any) -> tuple[socket.socket, int] | None:
        """Do what can be done at one socket of the door's; return a caller that has proven itself, and who it is.

        Its connection does not block, and the selector does not know it any more.
        """
        if fileobj is self.listener:
            while self._accept():
                pass
            return None
        return self._hear(fileobj)

    def tick(self) -> None:
        """Send away those who have not proven themselves in time. To be called now and then."""
        now = time.monotonic()
        while self.strangers and now > next(iter(self.strangers.values()))[1]:
            self._send_away(next(iter(self.strangers)))
        if self.closed_until is not None and now > self.closed_until:
            self.closed_until = None
            self.selector.register(self.listener, EVENT_READ, self)

    def close(self) -> None:
        """Send every stranger away, and listen no more."""
        for stranger in list(self.strangers):
            self._send_away(stranger)
        if self.closed_until is None:
            self.selector.unregister(self.listener)
        self.listener.close()

    def _accept(self) -> bool:
        """Take one caller's connection; False if there is none, or no room for it."""
        if len(self.strangers) >= _STRANGERS:
            self._send_away(next(iter(self.strangers)))
        try:
            connection, _ = self.listener.accept()
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                self._make_room()
            return False
        connection.setblocking(False)
        place = f"{plain(connection.getsockname()[0])} {self.port}"
        self.strangers[connection] = Listener(self.secret, place), time.monotonic() + _PATIENCE
        self.selector.register(connection, EVENT_READ, self)
        return len(self.strangers) < _STRANGERS

    def _make_room(self) -> None:
        """No file descriptor is left: take that of the oldest stranger, or look away for a while."""
        if self.strangers:
            self._send_away(next(iter(self.strangers)))
        else:
            self.selector.unregister(self.listener)
            self.closed_until = time.monotonic() + _PAUSE

    def _hear(self, stranger: socket.socket) -> tuple[socket.socket, int] | None:
        if stranger not in self.strangers:  # sent away in this very turn
            return None
        greeting, _ = self.strangers[stranger]
        try:
            data = stranger.recv(greeting.wanted)
            stranger.send(greeting.feed(data))  # a new connection has room for these 64 bytes
        except BlockingIOError:
            return None
        except (OSError, NotProvenError):
            data = b""
        if not data:
            self._send_away(stranger)
        elif greeting.identity is not None:
            del self.strangers[stranger]
            self.selector.unregister(stranger)
            stranger.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return stranger, greeting.identity
        return None

    def _send_away(self, stranger: socket.socket) -> None:
        del self.strangers[stranger]
        self.selector.unregister(stranger)
        stranger.close()
