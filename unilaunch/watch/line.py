"""A guard's line to whoever watches the job: the launching process, or the guard of rank 0."""

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from typing import Any

from unilaunch.sockets import Calls

#: "ADDRESS,ADDRESS PORT SECRET"; set by `launch`, in each rank's environment.
VARIABLE = "_UNILAUNCH_REPORT_TO"
#: Bytes of one message.
LARGEST = 1 << 26


def notice_silence(connection: socket.socket) -> None:
    """Have a connection break within 4 seconds when the other end is cut off or has lost its power."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 4000)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Line:
    """A connection that never blocks: what cannot be sent yet waits here.

    Args:
        where: "ADDRESS,ADDRESS PORT SECRET": all addresses are tried at once, the first that proves that it knows the
            secret is taken.
        selector: What the guard waits on.
        order: Called with each message that comes.
        broken: Called with the reason when a line that stood has broken.
    """

    def __init__(
        self,
        where: str,
        selector: BaseSelector,
        order: Callable[[dict[str, Any]], None],
        broken: Callable[[str], None],
    ) -> None:
        addresses, port, secret = where.split()
        self.selector, self.order, self.broken = selector, order, broken
        self.outgoing = bytearray()
        self.incoming = bytearray()
        self.connection: socket.socket | None = None
        places = [(address, int(port)) for address in addresses.split(",")]
        self.calls = Calls(places, bytes.fromhex(secret), 0, selector, self)

    @property
    def open(self) -> bool:
        """It stands, or may yet."""
        return bool(self.connection or self.calls)

    def send(self, **record: Any) -> None:
        """Send *record*, which must be JSON, as soon as it can be."""
        if self.open:
            self.outgoing += json.dumps(record).encode() + b"\n"
            self._flush()

    def ready(self, fileobj: Any, events: int) -> None:
        """Do what the selector says can be done now."""
        if fileobj in self.calls:
            if connection := self.calls.ready(fileobj):
                notice_silence(connection)
                self.connection = connection
        elif events & EVENT_READ:
            self._read()
        if self.connection:
            self._flush()

    def _read(self) -> None:
        connection = self.connection
        if connection is None:
            return
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not data:
            self._end("it was closed")
            return
        self.incoming += data
        while (end := self.incoming.find(b"\n")) >= 0:
            message, self.incoming[: end + 1] = bytes(self.incoming[:end]), b""
            with suppress(ValueError, RecursionError):
                self.order(json.loads(message))

    def _flush(self) -> None:
        if not self.connection:
            return
        try:
            while self.outgoing:
                del self.outgoing[: self.connection.send(self.outgoing)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        self.selector.modify(self.connection, EVENT_READ | (EVENT_WRITE if self.outgoing else 0), self)

    def _end(self, reason: str) -> None:
        if self.connection:
            self.selector.unregister(self.connection)
            self.connection.close()
            self.connection = None
            self.broken(reason)
