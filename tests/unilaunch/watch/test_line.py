"""The line between a guard and whoever watches the job, over real sockets."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from selectors import DefaultSelector
from typing import Any

import pytest

from unilaunch.watch.inbox import Inbox, listen
from unilaunch.watch.line import Line
from unilaunch.watch.watch import SETTLE, UNHEARD, Watch

FAILURE = {"rank": 1, "host": "b", "error": "ValueError", "message": "broken", "exit_code": 3}


class _Guard:
    """One end of the line, with its own loop."""

    def __init__(self, where: str) -> None:
        self.selector = DefaultSelector()
        self.orders: list[dict[str, Any]] = []
        self.broken: list[str] = []
        self.line = Line(where, self.selector, self.orders.append, self.broken.append)

    def turn(self) -> None:
        for key, events in self.selector.select(0.01):
            key.data.ready(key.fileobj, events)

    def close(self) -> None:
        for connection in (self.line.connection, *self.line.calls):
            if connection:
                connection.close()
        self.selector.close()


@pytest.fixture
def call() -> Iterator[Callable[[str], _Guard]]:
    """Call somewhere, as a guard does."""
    with ExitStack() as kept:

        def made(where: str) -> _Guard:
            guard = _Guard(where)
            kept.callback(guard.close)
            return guard

        yield made


Call = Callable[[str], _Guard]


def _until(done: Callable[[], object], inbox: Inbox, *guards: _Guard, watch: Watch | None = None) -> None:
    deadline = time.monotonic() + 10
    while not done():
        if watch:
            watch.look()
        assert time.monotonic() < deadline
        inbox.take(0.01)
        for guard in guards:
            guard.turn()


def test_words_and_orders_pass(call: Call) -> None:
    """A megabyte too, though neither end ever waits for the other; a dead address among several does no harm."""
    listening = listen([], several=False)
    _, port, token = listening.where.split()
    with Inbox(listening.listener, listening.token) as inbox:
        guard = call(f"127.0.0.1,127.0.0.2 {port} {token}")
        guard.line.send(rank=4, host="a", value="x" * 10**6)
        _until(lambda: "value" in inbox.ranks.get(4, {}), inbox, guard)
        assert len(inbox.ranks[4]["value"]) == 10**6
        inbox.tell_all(end=7)
        _until(lambda: guard.orders, inbox, guard)
        assert guard.orders == [{"end": 7}]
    deadline = time.monotonic() + 5
    while not guard.broken:
        assert time.monotonic() < deadline
        guard.turn()


def test_a_stranger_is_not_heard(call: Call) -> None:
    """Neither without the secret nor with words that are none."""
    listening = listen([], several=False)
    _, port, _ = listening.where.split()
    with Inbox(listening.listener, listening.token) as inbox:
        stranger = call(f"127.0.0.1 {port} {'0' * 32}")
        stranger.line.send(rank=0, host="evil")
        _until(lambda: stranger.broken, inbox, stranger)
        with socket.create_connection(("127.0.0.1", int(port))) as rude:
            rude.sendall(b"\x00\xff{\n[1]\n")
            for _ in range(20):
                inbox.take(0.01)
        assert inbox.ranks == {}


def test_a_failure_ends_the_job_and_a_silent_rank_is_one(call: Call) -> None:
    listening = listen([], several=False)
    with Inbox(listening.listener, listening.token) as inbox:
        watch = Watch(inbox, 3, several=False, stall_timeout=None, abort=True)
        guards = [call(listening.where) for _ in range(3)]
        for rank, guard in enumerate(guards):
            guard.line.send(rank=rank, host="b", progress={"phase": "train"})
        _until(lambda: len(inbox.ranks) == 3, inbox, *guards)
        watch.look()
        assert not watch.ending
        guards[1].line.send(failure=FAILURE)
        _until(lambda: inbox.failed, inbox, *guards)
        begin = time.monotonic()
        while not watch.ending:
            assert time.monotonic() < begin + SETTLE + 1
            watch.look()
        _until(lambda: all(guard.orders for guard in guards), inbox, *guards)
        assert guards[0].orders == [{"end": 3}]
        assert watch.verdict
        assert watch.verdict.first["rank"] == 1


def test_ranks_that_stand_still_are_asked_where(call: Call) -> None:
    """And then the job ends, with an exit code of its own."""
    listening = listen([], several=False)
    with Inbox(listening.listener, listening.token) as inbox:
        watch = Watch(inbox, 2, several=False, stall_timeout=0.3, abort=True)
        guards = [call(listening.where) for _ in range(2)]
        for rank, guard in enumerate(guards):
            guard.line.send(rank=rank, host="b")
        _until(lambda: len(inbox.ranks) == 2, inbox, *guards)
        _until(lambda: all(guard.orders for guard in guards), inbox, *guards, watch=watch)
        assert guards[0].orders == [{"stacks": True}]
        for guard in guards:
            guard.line.send(stack='  File "train.py", line 3 in wait\n', progress={})
        _until(lambda: watch.ending, inbox, *guards, watch=watch)
        assert watch.verdict
        assert watch.verdict.exit_code == 124
        assert watch.verdict.stacks[0]["ranks"] == [0, 1]


def test_ranks_that_are_never_heard_of_stand_still_too() -> None:
    """An import that hangs before there is a guard, say: the job ends when it is told to, not never."""
    listening = listen([], several=False)
    with Inbox(listening.listener, listening.token) as inbox:
        watch = Watch(inbox, 2, several=False, stall_timeout=UNHEARD + 5, abort=True)
        watch._began -= UNHEARD + 1
        watch.look()
        assert not watch.ending
        watch._began -= 5
        watch.look()
        watch.look()
        assert watch.ending
        assert watch.verdict
        assert watch.verdict.exit_code == 124
