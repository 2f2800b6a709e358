"""Requests to an agent over real Unix sockets: a slow or wrong client, or another user, delays no other request."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delays import TRIES
from unilaunch.agent import requests
from unilaunch.agent.requests import Requests
from unilaunch.agent.shim import READY, address_of, is_same_user
from unilaunch.start_variables import MAX_RESTARTS, MONITOR, RESTARTS

OWN = {"folder": "/work", "limits": []}
REQUEST = json.dumps({"circumstances": OWN, "files": [], "environ": {}}).encode() + b"\n"
NOBODY = 65534


class _Door:
    """Where an agent is asked."""

    def __init__(self, kept: ExitStack) -> None:
        self.kept = kept
        self.address = f"\0unilaunch-test-{os.getpid()}-{time.monotonic_ns()}"
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        door.bind(self.address)
        door.listen(4096)
        self.requests = Requests(door, OWN)
        kept.callback(self.requests.close)

    def ask(self, words: bytes) -> socket.socket:
        shim = self.kept.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        shim.connect(self.address)
        shim.settimeout(10)
        shim.sendall(words)
        return shim

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + 10
        while not done():
            assert time.monotonic() < deadline
            self.requests.take(0.01)


@pytest.fixture
def door() -> Iterator[_Door]:
    """Where an agent is asked."""
    with ExitStack() as kept:
        yield _Door(kept)


def test_a_request_goes_through_its_stages(door: _Door) -> None:
    """It is read, offered its rank and acknowledged; a long one too, which comes in pieces."""
    long = json.dumps({"circumstances": OWN, "files": [], "environ": {"A": "x" * 300_000}}).encode() + b"\n"
    shim = door.ask(long[:-100_000])
    for _ in range(10):
        door.requests.take(0.01)
    assert not door.requests.waiting
    shim.sendall(long[-100_000:])
    door.until(lambda: door.requests.waiting)
    door.requests.offer(door.requests.waiting[0])
    assert shim.recv(1) == READY
    shim.sendall(READY)
    door.until(lambda: door.requests.taken)
    assert door.requests.asked == 1
    assert len(door.requests.taken[0].request["environ"]["A"]) == 300_000


@pytest.mark.timed
def test_an_asker_that_stops_delays_nobody(door: _Door) -> None:
    """Neither in the middle of its request nor when it is to acknowledge the offer (a process that is stopped, say)."""
    halves = [door.ask(REQUEST[:20]) for _ in range(50)]
    silent = door.ask(REQUEST)
    door.until(lambda: door.requests.waiting)
    door.requests.offer(door.requests.waiting[0])

    def seconds() -> float:
        begin, granted = time.monotonic(), len(door.requests.taken)
        shim = door.ask(REQUEST)
        door.until(lambda: door.requests.waiting)
        door.requests.offer(door.requests.waiting[0])
        shim.sendall(shim.recv(1))
        door.until(lambda: len(door.requests.taken) > granted)
        return time.monotonic() - begin

    assert any(seconds() < 0.5 for _ in range(TRIES))  # a busy machine makes single tries slower, never faster
    assert silent.recv(1) == READY
    assert not door.requests.is_empty
    assert halves


def test_who_says_nothing_more_is_sent_away(door: _Door) -> None:
    """So an agent whose ranks have ended does not stay for it."""
    shim = door.ask(REQUEST[:20])
    door.until(lambda: door.requests._unheard)
    for _ in range(5):
        door.requests.take(0.01)
    assert not door.requests.is_empty
    for one in door.requests._unheard:
        door.requests._unheard[one] -= requests._PATIENCE
    door.until(lambda: door.requests.is_empty)
    assert shim.recv(1) == b""


@given(
    words=st.one_of(st.binary(max_size=200), st.sampled_from([REQUEST[:-1], b"[" * 100_000 + b"\n", b"7\n", b"{}\n"]))
)
def test_what_is_no_request_gets_no_rank(words: bytes) -> None:
    """Such a message ends nothing, and the next request is answered."""
    with ExitStack() as kept:
        door = _Door(kept)
        with suppress(OSError):
            door.ask(words).shutdown(socket.SHUT_WR)
        door.ask(REQUEST)
        door.until(lambda: door.requests.waiting)
        door.until(lambda: len(door.requests._unheard) == 0)
        assert len(door.requests.waiting) == 1


def _as_nobody(work: Callable[[], int]) -> int:
    """Return what *work* returns in a process of an unprivileged user."""
    if os.getuid():
        pytest.skip("only root can start another user's process")
    process = os.fork()
    if not process:
        code = 255
        with suppress(BaseException):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code = work()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.timed
def test_another_users_connections_are_closed_at_once(door: _Door) -> None:
    """200 of them neither count as shims nor delay one."""

    def call() -> int:
        called = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(200)]
        for one in called:
            one.connect(door.address)
            with suppress(OSError):
                one.sendall(REQUEST)
        return 0

    assert _as_nobody(call) == 0

    def seconds() -> float:
        begin, waiting = time.monotonic(), len(door.requests.waiting)
        door.ask(REQUEST)
        door.until(lambda: len(door.requests.waiting) > waiting)
        return time.monotonic() - begin

    assert any(seconds() < 1 for _ in range(TRIES))
    assert door.requests.asked == len(door.requests.waiting)
    assert len(door.requests._unheard) == 0


def test_another_user_cannot_tell_where_the_agent_will_listen() -> None:
    """He would take that place first. It follows from what the kernel shows of the launcher to its own user only."""
    environ = {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")}
    environ |= {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")}
    reading, writing = os.pipe()

    def address() -> str:
        with open(os.devnull) as nowhere:  # noqa: PTH123  (a terminal would make an agent of its own)
            os.dup2(nowhere.fileno(), 0)
        return address_of(OWN, environ)

    def tell() -> int:
        return os.write(writing, address().encode()) and 0

    own: dict[str, Any] = {}
    process = os.fork()
    if not process:
        os._exit(tell())
    os.waitpid(process, 0)
    own["ours"] = os.read(reading, 1000)
    assert _as_nobody(tell) == 0
    own["his"] = os.read(reading, 1000)
    os.close(reading)
    os.close(writing)
    assert str(os.getpid()).encode() in own["ours"]
    assert own["ours"].split(b"-")[3] != own["his"].split(b"-")[3]
    assert not _as_nobody(lambda: int(os.access(Path(f"/proc/{os.getppid()}/auxv"), os.R_OK)))


@pytest.mark.parametrize(("attempt", "allowed", "shared"), [
    ("0", "0", False), ("0", "1", True), ("1", "1", True), ("", "", False),
])  # fmt: skip
def test_a_single_rank_has_an_agent_for_its_restart(
    attempt: str, allowed: str, *, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the last attempt, which no restart follows."""
    monkeypatch.setattr(os, "isatty", lambda _: False)
    environ = {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")}
    environ |= {f"OMPI_COMM_WORLD_{name}": "1" for name in ("SIZE", "LOCAL_SIZE")}
    environ |= {MONITOR: "127.0.0.1 1 00 15", RESTARTS: attempt, MAX_RESTARTS: allowed}
    assert bool(address_of(OWN, environ)) is shared


def test_a_shims_files_are_for_its_rank_alone(door: _Door) -> None:
    """A program that the agent starts does not inherit them: mpirun would wait for it."""
    request = json.dumps({"circumstances": OWN, "files": [1], "environ": {}}).encode() + b"\n"
    shim = door.ask(b"")
    reading, writing = os.pipe()
    socket.send_fds(shim, [request], [writing])
    door.until(lambda: door.requests.waiting)
    (file,) = door.requests.waiting[0].files
    assert not os.get_inheritable(file)
    os.close(reading)
    os.close(writing)


def test_a_user_with_a_large_number_is_the_same_user() -> None:
    """Directories hand out numbers from 2**31 on."""
    if os.getuid():
        pytest.skip("only root can become another user")
    process = os.fork()
    if not process:
        code = 255
        with suppress(BaseException):
            os.setuid(3_000_000_000)
            code = not is_same_user(socket.socketpair()[0])
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
