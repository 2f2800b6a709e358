"""A small HTTP server for the inspection of a running job: GET only, in the monitor's event loop."""

import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector

from unilaunch.record import Record, field

#: Returns the answer and its content type; None while the answer is not ready.
Answer = Callable[[], tuple[str, str] | None]
_LARGEST_REQUEST = 4096  # bytes
_MOST_VISITORS = 16  # one more closes the oldest connection
_PATIENCE = 20.0  # seconds for a request and its answer


class _Visitor(Record, frozen=False):
    """A connection: its request, then its answer."""

    until: float
    request: bytearray = field(default_factory=bytearray)
    answer: Answer | None = None
    outgoing: bytes = b""


class HttpServer:
    """Answers requests on one listening socket. It never blocks, and keeps a bounded number of bytes.

    Args:
        listener: The socket.
        selector: The owner's selector; when an entry is ready, its data are called without arguments.
        pages: The function that starts the answer to a request, by path.
    """

    def __init__(
        self, listener: socket.socket, selector: BaseSelector, pages: Mapping[str, Callable[[], Answer]]
    ) -> None:
        self.listener, self.selector, self.pages = listener, selector, pages
        self.visitors: dict[socket.socket, _Visitor] = {}
        self.paused = False
        listener.setblocking(False)
        selector.register(listener, EVENT_READ, self._welcome)

    def tick(self) -> None:
        """Continue answers that were not ready, close connections that take too long, and accept clients again."""
        if self.paused:
            self.paused = False
            self.selector.register(self.listener, EVENT_READ, self._welcome)
        now = time.monotonic()
        for connection, visitor in list(self.visitors.items()):
            if now > visitor.until:
                self._leave(connection)
            elif visitor.answer:
                self._answer(connection, visitor)

    def close(self) -> None:
        """Stop listening."""
        for connection in list(self.visitors):
            self._leave(connection)
        if not self.paused:
            self.selector.unregister(self.listener)
        self.listener.close()

    def _welcome(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:  # the client has disconnected, or there is no file descriptor left: not again before `tick`
            self.selector.unregister(self.listener)
            self.paused = True
            return
        connection.setblocking(False)
        if len(self.visitors) >= _MOST_VISITORS:
            self._leave(next(iter(self.visitors)))
        self.visitors[connection] = _Visitor(time.monotonic() + _PATIENCE)
        self.selector.register(connection, EVENT_READ, partial(self._go_on, connection))

    def _go_on(self, connection: socket.socket) -> None:
        visitor = self.visitors.get(connection)
        if visitor is None:  # closed for another visitor, after the same `select` had found it ready
            return
        try:
            if visitor.outgoing:
                visitor.outgoing = visitor.outgoing[connection.send(visitor.outgoing) :]
                if not visitor.outgoing:
                    self._leave(connection)
                return
            data = connection.recv(_LARGEST_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        visitor.request += data
        if not data or len(visitor.request) > _LARGEST_REQUEST:
            self._leave(connection)
        elif b"\r\n\r\n" in visitor.request and not visitor.answer:
            self._begin(connection, visitor)

    def _begin(self, connection: socket.socket, visitor: _Visitor) -> None:
        words = bytes(visitor.request).split(b"\r\n")[0].decode(errors="replace").split(" ")
        page = self.pages.get(words[1].partition("?")[0]) if len(words) > 1 and words[0] == "GET" else None
        if page is None:
            self._send(connection, visitor, "404 Not Found", f"expected GET {' or '.join(self.pages)}\n", "text/plain")
            return
        visitor.answer = page()
        self._answer(connection, visitor)

    def _answer(self, connection: socket.socket, visitor: _Visitor) -> None:
        if visitor.answer and (answer := visitor.answer()):
            visitor.answer = None
            self._send(connection, visitor, "200 OK", *answer)

    def _send(self, connection: socket.socket, visitor: _Visitor, status: str, text: str, kind: str) -> None:
        body = text.encode(errors="backslashreplace")
        head = f"HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        visitor.outgoing = head.encode() + body
        self.selector.modify(connection, EVENT_WRITE, partial(self._go_on, connection))

    def _leave(self, connection: socket.socket) -> None:
        del self.visitors[connection]
        self.selector.unregister(connection)
        connection.close()
