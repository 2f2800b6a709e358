"""Those who look in: they are answered beside each other, and cannot take room or time without a bound."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from selectors import DefaultSelector

from unilaunch.monitor.http_server import Answer, HttpServer
from unilaunch.monitor.metrics import write_metrics
from unilaunch.version import __version__

Get = Callable[[bytes], bytes]


@contextmanager
def _server() -> Iterator[tuple[HttpServer, tuple[str, int], Get]]:
    """Give a server, where it is, and who calls it. The answer for /stacks is never known."""

    def page(known: Answer) -> Callable[[], Answer]:
        return lambda: known

    def get(request: bytes) -> bytes:
        with socket.create_connection(listener.getsockname(), 5) as caller:
            caller.sendall(request)
            for _ in range(60):
                for key, _ in selector.select(0.01):
                    key.data()
                server.tick()
            caller.setblocking(False)
            with suppress(BlockingIOError, ConnectionResetError):
                return caller.recv(1 << 16)
            return b""

    listener = socket.create_server(("127.0.0.1", 0))
    with DefaultSelector() as selector:
        pages = {"/status": page(lambda: ("{}", "text/plain")), "/stacks": page(lambda: None)}
        server = HttpServer(listener, selector, pages)
        yield server, listener.getsockname(), get
        server.close()


def test_requests_are_answered_while_one_waits() -> None:
    """One whose answer is not known yet keeps nobody from his."""
    with _server() as (_, where, get):
        with socket.create_connection(where) as slow:
            slow.sendall(b"GET /stacks HTTP/1.1\r\n\r\n")
            answer = get(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n{}")
        assert get(b"GET /status?x=1 HTTP/1.1\r\n\r\n") == answer
        for request in (b"GET /etc/passwd HTTP/1.1\r\n\r\n", b"POST /status HTTP/1.1\r\n\r\n", b"x\r\n\r\n"):
            assert b" 404 Not Found\r\n" in get(request)


def test_strangers_have_bounds() -> None:
    """A request without an end is sent away, and so is the oldest of too many visitors."""
    with _server() as (server, where, get):
        assert get(b"GET /" + 9000 * b"a") == b""
        callers = [socket.create_connection(where) for _ in range(40)]
        assert get(b"GET /status HTTP/1.0\r\n\r\n").endswith(b"{}")
        assert 0 < len(server.visitors) <= 16
        for caller in callers:
            caller.close()


def test_names_in_metrics_are_escaped() -> None:
    """A model chooses the names of its figures."""
    rank = {
        "rank": 0, "host": 'a"b\\', "state": "running", "step": None, "values": {"x\ny": 1.5}, "steps": 3,
        "busy_seconds": 0.5, "seconds_per_step": None, "received_bytes": 7, "memory_bytes": 1, "idle_seconds": None,
    }  # fmt: skip
    text = write_metrics({"run": "a", "size": 1, "restarts": 2, "straggler": None, "ranks": [rank]})
    assert 'unilaunch_value{rank="0",host="a\\"b\\\\",name="x\\ny"} 1.5\n' in text
    assert f'unilaunch_job_info{{run="a",version="{__version__}"}} 1\n' in text
    assert "unilaunch_restarts_total 2\n" in text
    assert "unilaunch_seconds_per_step{" not in text
