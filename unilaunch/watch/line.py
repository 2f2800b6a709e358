"""A guard's line to whoever watches the job: the launching process, or the guard of rank 0."""

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from typing import Any

#: "ADDRESS,ADDRESS PORT TOKEN"; set by `launch`, in each rank's environment.
VARIABLE = "_UNILAUNCH_REPORT_TO"
_FAMILIES = {False: socket.AF_INET, True: socket.AF_INET6}


def notice_silence(connection: socket.socket) -> None:
    """Have a connection break within 4 seconds when the other end is cut off or has lost its power."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 4000)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Line:
    """A connection that never blocks: what cannot be sent yet waits here.

    Args:
        where: "ADDRESS,ADDRESS PORT TOKEN": all addresses are tried at once, the first that answers is taken.
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
        addresses, port, token = where.split()
        self.selector, self.order, self.broken = selector, order, broken
        self.outgoing = bytearray(json.dumps({"token": token}).encode() + b"\n")
        self.incoming = bytearray()
        self.connection: socket.socket | None = None
        self.calls: list[socket.socket] = []
        for address in addresses.split(","):
            call = socket.socket(_FAMILIES[":" in address], socket.SOCK_STREAM)
            call.setblocking(False)
            call.connect_ex((address, int(port)))
            selector.register(call, EVENT_WRITE, self)
            self.calls.append(call)

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
            self._answered(fileobj)
        elif events & EVENT_READ:
            self._read()
        if self.connection:
            self._flush()

    def _answered(self, call: socket.socket) -> None:
        self.selector.unregister(call)
        self.calls.remove(call)
        if call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            call.close()
            return
        for other in self.calls:
            self.selector.unregister(other)
            other.close()
        self.calls = []
        self.connection = call
        notice_silence(call)
        self.selector.register(call, EVENT_READ, self)

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
            with suppress(ValueError):
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
