"""The control connection between agents and the monitor, over real sockets."""

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from selectors import DefaultSelector

import pytest

from delays import is_delayed
from unilaunch.folder.failure import Cause, Failure
from unilaunch.interfaces.calls import Operation
from unilaunch.monitor import monitor as monitoring
from unilaunch.monitor.connection import Connection, listen
from unilaunch.monitor.http_server import HttpServer
from unilaunch.monitor.inbox import Inbox
from unilaunch.monitor.messages import (
    End,
    Exited,
    Failed,
    Input,
    Message,
    Named,
    OfAgent,
    OfRank,
    Progress,
    Returned,
    ShowStacks,
    Stack,
)
from unilaunch.monitor.monitor import SETTLE, START, Monitor
from unilaunch.record import replace

FAILURE = Failure(Cause.EXCEPTION, "broken", 3, error="ValueError", rank=1, host="b")


class _Agent:
    """One end of the connection, with its own loop."""

    def __init__(self, where: str) -> None:
        self.selector = DefaultSelector()
        self.orders: list[Message] = []
        self.broken: list[str] = []
        self.connection = Connection(
            where, self.selector, lambda _, order: self.orders.append(order), self.broken.append
        )

    def tell(self, rank: int, *told: OfRank | OfAgent) -> None:
        for message in told:
            self.connection.send(message, rank)

    def turn(self) -> None:
        for key, _ in self.selector.select(0.01):
            key.data()
        self.connection.look()

    def close(self) -> None:
        self.connection.dials.close()
        if self.connection.connection:
            self.connection.connection.close()
        self.selector.close()


@pytest.fixture
def call() -> Iterator[Callable[[str], _Agent]]:
    """Call somewhere, as a agent does."""
    with ExitStack() as kept:

        def made(where: str) -> _Agent:
            agent = _Agent(where)
            kept.callback(agent.close)
            return agent

        yield made


Call = Callable[[str], _Agent]


def _until(done: Callable[[], object], inbox: Inbox, *agents: _Agent, monitor: Monitor | None = None) -> None:
    deadline = time.monotonic() + 10
    while not done():
        if monitor:
            monitor.look()
        assert time.monotonic() < deadline
        inbox.take(0.01)
        for agent in agents:
            agent.turn()


def test_words_and_orders_pass(call: Call) -> None:
    """A megabyte too, though neither end ever waits for the other; a dead address among several does no harm."""
    listening = listen([], several=False, host_timeout=15)
    _, port, secret, _ = listening.where.split()
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        agent = call(f"127.0.0.1,127.0.0.2 {port} {secret} 15")
        agent.tell(4, Named(4, "a"), Returned("x" * 10**6))
        _until(lambda: 4 in inbox.ranks and inbox.ranks[4].value, inbox, agent)
        assert inbox.ranks[4].value == "x" * 10**6
        inbox.tell_all(End(7))
        _until(lambda: agent.orders, inbox, agent)
        assert agent.orders == [End(7)]
    deadline = time.monotonic() + 5
    while not agent.broken:
        assert time.monotonic() < deadline
        agent.turn()


def test_an_agent_that_is_late_misses_no_order(call: Call) -> None:
    """The monitor goes on meanwhile, and keeps what the connection cannot take."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        agent = call(listening.where)
        agent.tell(0, Named(0, "a"))
        _until(lambda: inbox.agents, inbox, agent)
        for number in range(200):
            inbox.tell_all(Input("x" * 50_000 + str(number)))
            inbox.take(0)
        _until(lambda: len(agent.orders) == 200, inbox, agent)
        assert agent.orders == [Input("x" * 50_000 + str(number)) for number in range(200)]


def test_a_stranger_is_not_heard(call: Call) -> None:
    """Neither without the secret nor with words that are none."""
    listening = listen([], several=False, host_timeout=15)
    _, port, _, _ = listening.where.split()
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        stranger = call(f"127.0.0.1 {port} {'0' * 64} 15")
        stranger.tell(0, Named(0, "evil"))
        _until(lambda: not stranger.connection.open, inbox, stranger)
        assert stranger.broken == []
        for rude in (b"\x00\xff{\n[1]\n", b"[" * 100_000 + b"\n", b'[0, "Done", {}]\n'):
            with socket.create_connection(("127.0.0.1", int(port))) as connection:
                connection.sendall(rude)
                for _ in range(20):
                    inbox.take(0.01)
        assert inbox.ranks == {}


def test_a_forked_rank_keeps_no_socket_of_the_monitor(call: Call) -> None:
    """Neither the listening ones, that of the metrics included, nor an agent's; the monitor goes on to hear it."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        server = HttpServer(socket.create_server(("127.0.0.1", 0)), inbox.selector, {})
        agent = call(listening.where)
        agent.tell(1, Named(1, "a"))
        _until(lambda: inbox.ranks, inbox, agent)
        if not (rank := os.fork()):
            inbox.close_files()
            own = (server.listener, listening.listener, *(one.connection for one in inbox.connections))
            os._exit(0 if len(own) == 3 and all(each.fileno() < 0 for each in own) else 1)
        assert os.waitpid(rank, 0)[1] == 0
        agent.tell(1, Exited(0))
        _until(lambda: inbox.ranks[1].is_over, inbox, agent)
        server.close()


def test_brackets_from_a_agent_are_no_words(call: Call) -> None:
    """Nesting that no parser can hold ends that line, and not the process that monitores the job."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        agent, other = call(listening.where), call(listening.where)
        other.tell(1, Named(1, "a"))
        agent.connection.outgoing += b"[" * 100_000 + b"\n"
        _until(lambda: agent.broken and inbox.ranks, inbox, agent, other)
        assert set(inbox.ranks) == {1}


def test_a_false_monitor_is_not_believed(call: Call) -> None:
    """Who answers first, but does not know the secret, gives no orders; the true one is found beside it."""
    listening = listen([], several=False, host_timeout=15)
    _, port, secret, _ = listening.where.split()
    with (
        socket.create_server(("127.0.0.2", int(port))) as false,
        Inbox(listening.listener, listening.secret, 15) as inbox,
    ):
        agent = call(f"127.0.0.2,127.0.0.1 {port} {secret} 15")
        agent.tell(1, Named(1, "a"))
        connection, _ = false.accept()
        with connection:
            connection.sendall(b'{"end": 7}\n' * 20)
            _until(lambda: inbox.ranks, inbox, agent)
            assert secret.encode() not in connection.recv(4096)
        assert agent.orders == []
        assert agent.connection.connection


@pytest.mark.parametrize(
    ("host_timeout", "milliseconds"), [(15, 14_500), (3, 2500), (1, 1000), (200, 199_500), (86_400, 86_399_500)]
)
def test_an_order_waits_for_a_silent_host_as_long_as_a_probe(
    call: Call, host_timeout: float, milliseconds: int
) -> None:
    """TCP_USER_TIMEOUT is in milliseconds. Linux sends 127 probes at most: then they are further apart."""
    listening = listen([], several=False, host_timeout=host_timeout)
    with Inbox(listening.listener, listening.secret, host_timeout) as inbox:
        agent = call(listening.where)
        agent.tell(1, Named(1, "a"))
        _until(lambda: inbox.ranks, inbox, agent)
        (connection,) = (one.connection for one in inbox.connections)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds
        pause, number = (
            connection.getsockopt(socket.IPPROTO_TCP, one) for one in (socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert max(1, host_timeout * 0.99 - pause) <= pause * number <= host_timeout


@pytest.mark.timed
def test_silent_strangers_delay_nobody(call: Call) -> None:
    """200 of them delay the first word of an agent by less than 0.1 s."""

    def seconds(strangers: int) -> float:
        listening = listen([], several=False, host_timeout=15)
        with Inbox(listening.listener, listening.secret, 15) as inbox, ExitStack() as kept:
            for _ in range(strangers):
                kept.enter_context(socket.create_connection(listening.listener.getsockname()))
            begin = time.monotonic()
            agent = call(listening.where)
            agent.tell(1, Named(1, "a"))
            _until(lambda: inbox.ranks, inbox, agent)
            return time.monotonic() - begin

    assert not is_delayed(lambda: seconds(0), lambda: seconds(200), 0.1)


@pytest.mark.timed
def test_without_file_descriptors_it_does_not_spin(call: Call) -> None:
    """A caller that cannot be let in yet is let in later, and meanwhile no processor is used."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        agent = call(listening.where)
        agent.tell(1, Named(1, "a"))
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
        _until(lambda: inbox.ranks, inbox, agent)


@pytest.mark.timed
def test_a_long_value_takes_time_in_proportion(call: Call) -> None:
    """30 MB in a second: what has been searched for a line's end is not searched again."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        agent = call(listening.where)
        used = time.process_time()
        agent.tell(1, Named(1, "a"), Returned("x" * 30_000_000))
        _until(lambda: inbox.ranks, inbox, agent)
        assert time.process_time() - used < 2  # 17 s, when each piece was searched from the beginning


@pytest.mark.timed
def test_a_failure_ends_the_job_and_a_silent_rank_is_one(call: Call) -> None:
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        monitor = Monitor(inbox, 3, several=False, stall_timeout=None, abort=True)
        agents = [call(listening.where) for _ in range(3)]
        for rank, agent in enumerate(agents):
            agent.tell(rank, Named(rank, "b"), Progress({"phase": "train"}, 0.0))
        _until(lambda: len(inbox.ranks) == 3, inbox, *agents)
        monitor.look()
        assert not monitor.ending
        agents[1].tell(1, Failed(FAILURE))
        _until(lambda: inbox.failed, inbox, *agents)
        begin = time.monotonic()
        while not monitor.ending:
            late = time.monotonic() > begin + SETTLE + 1
            monitor.look()
            assert monitor.ending or not late
        _until(lambda: all(agent.orders for agent in agents), inbox, *agents)
        assert agents[0].orders == [End(3)]
        assert monitor.verdict
        assert monitor.verdict.first.rank == 1


def test_without_abort_a_rank_that_has_not_connected_yet_may_go_on(call: Call) -> None:
    """The other one has failed before this one was heard of."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        monitor = Monitor(inbox, 2, several=False, stall_timeout=None, abort=False)
        agents = [call(listening.where) for _ in range(2)]
        agents[1].tell(1, Named(1, "b"), Failed(FAILURE), Exited(3))
        _until(lambda: inbox.failed, inbox, *agents)
        monitor.look()
        assert not monitor.ending
        agents[0].tell(0, Named(0, "b"))
        _until(lambda: len(inbox.ranks) == 2, inbox, *agents)
        monitor.look()
        assert not monitor.ending
        agents[0].tell(0, Exited(0))
        _until(lambda: monitor.ending, inbox, *agents, monitor=monitor)
        assert monitor.verdict
        assert monitor.verdict.first.rank == 1


def test_ranks_that_refuse_together_end_by_themselves(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late one of them is: it has yet to say why, and to write that into its log."""
    monkeypatch.setattr(monitoring, "DOUBT", 0.0)
    refused = replace(FAILURE, together=True)
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        monitor = Monitor(inbox, 3, several=False, stall_timeout=None, abort=True)
        agents = [call(listening.where) for _ in range(3)]
        for rank, agent in enumerate(agents):
            agent.tell(rank, Named(rank, "b"))
        for rank in (1, 2):
            agents[rank].tell(rank, Failed(refused), Exited(3))
        _until(lambda: len(inbox.ranks) == 3 and len(inbox.failed) == 2, inbox, *agents, monitor=monitor)
        for _ in range(3):
            time.sleep(0.01)
            monitor.look()
        assert not monitor.ending
        agents[0].tell(0, Failed(refused), Exited(3))
        _until(lambda: monitor.ending, inbox, *agents, monitor=monitor)
        assert monitor.verdict
        assert monitor.verdict.everywhere


def test_ranks_that_stand_still_are_asked_where(call: Call) -> None:
    """And then the job ends, with an exit code of its own."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        monitor = Monitor(inbox, 2, several=False, stall_timeout=0.3, abort=True)
        agents = [call(listening.where) for _ in range(2)]
        for rank, agent in enumerate(agents):
            agent.tell(rank, Named(rank, "b"))
        _until(lambda: len(inbox.ranks) == 2, inbox, *agents)
        _until(lambda: all(agent.orders for agent in agents), inbox, *agents, monitor=monitor)
        assert agents[0].orders == [ShowStacks()]
        for rank, agent in enumerate(agents):
            agent.tell(rank, Stack('  File "train.py", line 3 in wait\n', {}))
        _until(lambda: monitor.ending, inbox, *agents, monitor=monitor)
        assert monitor.verdict
        assert monitor.verdict.exit_code == 124
        assert monitor.verdict.stacks[0]["ranks"] == [0, 1]


def test_without_abort_ranks_that_wait_for_a_failed_one_are_found(call: Call) -> None:
    """A stall: the first failure is the verdict, and the stacks show where the others wait for it."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        monitor = Monitor(inbox, 2, several=False, stall_timeout=0.3, abort=False)
        agents = [call(listening.where) for _ in range(2)]
        agents[0].tell(0, Named(0, "b"))
        agents[1].tell(1, Named(1, "b"), Failed(FAILURE), Exited(3))
        _until(lambda: len(inbox.ranks) == 2 and bool(inbox.failed), inbox, *agents)
        _until(lambda: agents[0].orders, inbox, *agents, monitor=monitor)
        assert agents[0].orders == [ShowStacks()]
        agents[0].tell(0, Stack('  File "train.py", line 3 in wait\n', {}))
        _until(lambda: monitor.ending, inbox, *agents, monitor=monitor)
        assert monitor.verdict
        assert (monitor.verdict.first.rank, monitor.verdict.exit_code) == (1, FAILURE.exit_code)
        assert monitor.verdict.stacks[0]["ranks"] == [0]


def test_ranks_that_went_on_are_asked_anew(call: Call) -> None:
    """A stall that ended by itself is forgotten: the next one shows where the ranks stand then."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        monitor = Monitor(inbox, 1, several=False, stall_timeout=0.3, abort=True)
        agent = call(listening.where)
        agent.tell(0, Named(0, "b"))
        _until(lambda: agent.orders, inbox, agent, monitor=monitor)
        agent.tell(0, Stack('  File "train.py", line 1 in first\n', {}))
        agent.tell(0, Progress({"epoch": 2}, -3600.0))
        _until(lambda: inbox.ranks[0].progress, inbox, agent)
        monitor.look()
        inbox.ranks[0].moved -= 3600.0
        inbox.moved -= 3600.0
        _until(lambda: len(agent.orders) == 2, inbox, agent, monitor=monitor)
        assert not monitor.ending
        agent.tell(0, Stack('  File "train.py", line 2 in second\n', {}))
        _until(lambda: monitor.ending, inbox, agent, monitor=monitor)
        assert agent.orders[:2] == [ShowStacks()] * 2
        assert monitor.verdict
        assert "second" in monitor.verdict.stacks[0]["where"]


def test_ranks_in_different_collectives_end_the_job_with_both_names(call: Call) -> None:
    """They wait for each other without end; nobody had to ask for a stall's timeout."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        monitor = Monitor(inbox, 2, several=False, stall_timeout=None, abort=True)
        agents = [call(listening.where) for _ in range(2)]
        for rank, operation in enumerate((Operation.EXCHANGE, Operation.BARRIER)):
            kinds = bytes((Operation.ALL_REDUCE, operation)).hex()
            agents[rank].tell(rank, Named(rank, "b"), Progress({}, 1.0, calls=7, kinds=kinds))
        _until(lambda: all(agent.orders for agent in agents), inbox, *agents, monitor=monitor)
        assert agents[0].orders == [ShowStacks()]
        for rank, agent in enumerate(agents):
            agent.tell(rank, Stack(f'  File "train.py", line {rank} in train\n', {}))
        _until(lambda: monitor.ending, inbox, *agents, monitor=monitor)
        assert monitor.verdict
        assert (monitor.verdict.exit_code, monitor.verdict.first.final) == (1, True)
        assert "rank 0 is at an exchange of rows (collective 7) and rank 1 is at barrier" in monitor.verdict.line
        assert [group["ranks"] for group in monitor.verdict.stacks] == [[0], [1]]


def test_progress_that_is_sent_late_counts_from_when_it_was_made(call: Call) -> None:
    """A agent sends at most two messages a second; a stall begins with the last progress, not with its message."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        agent = call(listening.where)
        agent.tell(0, Named(0, "a"))
        _until(lambda: inbox.ranks, inbox, agent)
        inbox.ranks[0].moved = 0.0
        agent.tell(0, Progress({"epoch": 1}, 3.0))
        _until(lambda: inbox.ranks[0].progress, inbox, agent)
        assert 3.0 <= time.monotonic() - inbox.ranks[0].moved < 13.0
        agent.tell(0, Progress({"epoch": 2}, 0.0))
        agent.tell(0, Progress({"epoch": 3}, 20.0))
        _until(lambda: inbox.ranks[0].progress["epoch"] == 3, inbox, agent)
        assert time.monotonic() - inbox.ranks[0].moved < 13.0


@pytest.mark.parametrize(("several", "hint"), [(False, ""), (True, ": the other hosts must reach this one")])
def test_the_first_rank_has_a_limit(*, several: bool, hint: str) -> None:
    """From the moment at which the launcher was started; a rank that has begun has its own."""
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        monitor = Monitor(inbox, 2, several, stall_timeout=None, abort=True, start_limit=5)
        monitor._began -= 6  # while other nodes were awaited
        monitor.begin()
        monitor.look()
        assert not monitor.ending
        monitor._began -= 6
        monitor.look()
        assert monitor.verdict
        assert monitor.verdict.exit_code == 1
        assert monitor.verdict.first.cause is Cause.NEVER_BEGAN
        assert monitor.verdict.line.startswith(f"no rank has begun within 5 s (--timeout){hint}")


def test_ranks_that_are_never_heard_of_stand_still_too(call: Call) -> None:
    """An import that hangs, say: the job ends on an order, but not while a slow machine starts its ranks.

    An agent that connects later gets the message that the job has ended.
    """
    listening = listen([], several=False, host_timeout=15)
    with Inbox(listening.listener, listening.secret, 15) as inbox:
        monitor = Monitor(inbox, 2, several=False, stall_timeout=1, abort=True)
        monitor._began -= START - 1
        monitor.look()
        monitor.look()
        assert not monitor.ending
        monitor._began -= 1
        monitor.look()
        monitor.look()
        assert monitor.verdict
        assert monitor.verdict.line == "no rank has been heard of for 30 s: the job is ended (exit code 124)"
        late = call(listening.where)
        late.tell(0, Named(0, "a"))
        _until(lambda: late.orders, inbox, late)
        assert late.orders == [End(124)]
