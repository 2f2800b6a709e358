"""The line between a guard and whoever watches the job, over real sockets."""

import os
import resource
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
        self.line.look()

    def close(self) -> None:
        self.line.calls.close()
        if self.line.connection:
            self.line.connection.close()
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
    listening = listen([], several=False, host_timeout=15)
    _, port, secret, _ = listening.where.split()
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        guard = call(f"127.0.0.1,127.0.0.2 {port} {secret} 15")
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
    listening = listen([], several=False, host_timeout=15)
    _, port, _, _ = listening.where.split()
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        stranger = call(f"127.0.0.1 {port} {'0' * 64} 15")
        stranger.line.send(rank=0, host="evil")
        _until(lambda: not stranger.line.open, inbox, stranger)
        assert stranger.broken == []
        for rude in (b"\x00\xff{\n[1]\n", b"[" * 100_000 + b"\n", b'{"rank": 0}\n'):
            with socket.create_connection(("127.0.0.1", int(port))) as connection:
                connection.sendall(rude)
                for _ in range(20):
                    inbox.take(0.01)
        assert inbox.ranks == {}


def test_brackets_from_a_guard_are_no_words(call: Call) -> None:
    """Nesting that no parser can hold ends that line, and not the process that watches the job."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        guard, other = call(listening.where), call(listening.where)
        other.line.send(rank=1, host="a")
        guard.line.outgoing += b"[" * 100_000 + b"\n"
        _until(lambda: guard.broken and inbox.ranks, inbox, guard, other)
        assert set(inbox.ranks) == {1}


def test_a_false_watch_is_not_believed(call: Call) -> None:
    """Who answers first, but does not know the secret, gives no orders; the true one is found beside it."""
    listening = listen([], several=False, host_timeout=15)
    _, port, secret, _ = listening.where.split()
    with (
        socket.create_server(("127.0.0.2", int(port))) as false,
        Inbox(listening.listener, listening.secret, 15) as inbox,
    ):
        guard = call(f"127.0.0.2,127.0.0.1 {port} {secret} 15")
        guard.line.send(rank=1, host="a")
        connection, _ = false.accept()
        with connection:
            connection.sendall(b'{"end": 7}\n' * 20)
            _until(lambda: inbox.ranks, inbox, guard)
            assert secret.encode() not in connection.recv(4096)
        assert guard.orders == []
        assert guard.line.connection


@pytest.mark.parametrize(("host_timeout", "milliseconds"), [(15, 13_500), (3, 1500), (2, 1000)])
def test_an_order_waits_for_a_silent_host_as_long_as_a_probe(
    call: Call, host_timeout: float, milliseconds: int
) -> None:
    """TCP_USER_TIMEOUT is in milliseconds."""
    listening = listen([], several=False, host_timeout=host_timeout)
    with Inbox(listening.listener, listening.secret, host_timeout) as inbox:
        guard = call(listening.where)
        guard.line.send(rank=1, host="a")
        _until(lambda: inbox.ranks, inbox, guard)
        (connection,) = inbox.rank_of
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds


@pytest.mark.timed
def test_silent_strangers_delay_nobody(call: Call) -> None:
    """Two hundred of them, and one more when no file descriptor is left."""
    listening = listen([], several=False, host_timeout=15)
    address = listening.listener.getsockname()
    with Inbox(listening.listener, listening.secret, 15) as inbox, ExitStack() as kept:
        for _ in range(200):
            kept.enter_context(socket.create_connection(address))
        begin = time.monotonic()
        guard = call(listening.where)
        guard.line.send(rank=1, host="a")
        _until(lambda: inbox.ranks, inbox, guard)
        assert time.monotonic() - begin < 1


@pytest.mark.timed
def test_without_file_descriptors_it_does_not_spin(call: Call) -> None:
    """A caller that cannot be let in yet is let in later, and meanwhile no processor is used."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        guard = call(listening.where)
        guard.line.send(rank=1, host="a")
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = [os.dup(0)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, before[1]))
            used, until = time.process_time(), time.monotonic() + 1.0
            while time.monotonic() < until:
                inbox.take(0.2)
            assert time.process_time() - used < 0.2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            os.close(taken[0])
        _until(lambda: inbox.ranks, inbox, guard)


@pytest.mark.timed
def test_a_long_value_takes_time_in_proportion(call: Call) -> None:
    """30 MB in a second: what has been searched for a line's end is not searched again."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        guard = call(listening.where)
        used = time.process_time()
        guard.line.send(rank=1, value="x" * 30_000_000)
        _until(lambda: inbox.ranks, inbox, guard)
        assert time.process_time() - used < 2  # 17 s, when each piece was searched from the beginning


@pytest.mark.timed
def test_a_failure_ends_the_job_and_a_silent_rank_is_one(call: Call) -> None:
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
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
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
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


def test_ranks_that_went_on_are_asked_anew(call: Call) -> None:
    """A stall that ended by itself is forgotten: the next one shows where the ranks stand then."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        watch = Watch(inbox, 1, several=False, stall_timeout=0.3, abort=True)
        guard = call(listening.where)
        guard.line.send(rank=0, host="b")
        _until(lambda: guard.orders, inbox, guard, watch=watch)
        guard.line.send(stack='  File "train.py", line 1 in first\n', progress={})
        guard.line.send(progress={"epoch": 2})
        _until(lambda: inbox.ranks[0].get("progress"), inbox, guard)
        watch.look()
        _until(lambda: len(guard.orders) == 2, inbox, guard, watch=watch)
        assert not watch.ending
        guard.line.send(stack='  File "train.py", line 2 in second\n', progress={})
        _until(lambda: watch.ending, inbox, guard, watch=watch)
        assert guard.orders[:2] == [{"stacks": True}] * 2
        assert watch.verdict
        assert "second" in watch.verdict.stacks[0]["where"]


def test_progress_that_is_sent_late_counts_from_when_it_was_made(call: Call) -> None:
    """A guard sends at most two messages a second; a stall begins with the last progress, not with its message."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        guard = call(listening.where)
        guard.line.send(rank=0, progress={"epoch": 1}, age=3.0)
        _until(lambda: inbox.ranks, inbox, guard)
        assert 3.0 <= time.monotonic() - inbox.moved[0] < 13.0
        guard.line.send(progress={"epoch": 2})
        guard.line.send(progress={"epoch": 3}, age=20.0)
        _until(lambda: inbox.ranks[0]["progress"]["epoch"] == 3, inbox, guard)
        assert time.monotonic() - inbox.moved[0] < 13.0


def test_ranks_that_are_never_heard_of_stand_still_too() -> None:
    """An import that hangs before there is a guard, say: the job ends when it is told to, not never."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
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
