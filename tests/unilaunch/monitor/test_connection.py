"""The control connection between agents and the monitor, over real sockets."""

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from selectors import DefaultSelector
from typing import Any

import pytest

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
from unilaunch.monitor.monitor import SETTLE, Monitor
from unilaunch.monitor.verdict import Verdict
from unilaunch.record import replace

FAILURE = Failure(Cause.EXCEPTION, "broken", 3, error="ValueError", rank=1, host="b")


def _stack(line: int, function: str) -> Stack:
    return Stack(f'  File "train.py", line {line} in {function}\n', {})


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


class _Job:
    """An inbox, a monitor of so many ranks, and agents that call it. Its options are those of `Monitor`."""

    def __init__(self, inbox: Inbox, size: int, options: dict[str, Any]) -> None:
        self.inbox, self.where, self.agents = inbox, inbox.where, list[_Agent]()
        usual: dict[str, Any] = {"several": False, "stall_timeout": None, "abort": True}
        self.monitor = Monitor(inbox, size, **usual | options)

    def call(self, where: str = "") -> _Agent:
        self.agents.append(_Agent(where or self.where))
        return self.agents[-1]

    def name(self, ranks: int) -> list[_Agent]:
        """Let an agent call for each rank, and wait until all are known."""
        agents = [self.call() for _ in range(ranks)]
        for rank, agent in enumerate(agents):
            agent.tell(rank, Named(rank, "b"))
        self.until(lambda: len(self.inbox.ranks) == ranks)
        return agents

    def until(self, done: Callable[[], object], *, look: bool = False) -> None:
        deadline = time.monotonic() + 10
        while not done():
            assert time.monotonic() < deadline
            if look:
                self.monitor.look()
            self.inbox.take(0.01)
            for agent in self.agents:
                agent.turn()

    def end(self) -> Verdict:
        """Return the verdict, once the monitor ends the job."""
        self.until(lambda: self.monitor.ending, look=True)
        assert self.monitor.verdict
        return self.monitor.verdict


@contextmanager
def _job(size: int = 1, host_timeout: float = 15.0, **options: Any) -> Iterator[_Job]:
    with Inbox(listen([], several=False, host_timeout=host_timeout)) as inbox:
        job = _Job(inbox, size, options)
        try:
            yield job
        finally:
            for agent in job.agents:
                agent.close()


def test_words_and_orders_pass() -> None:
    """A megabyte too, though neither end ever waits for the other; a dead address among several does no harm."""
    with _job() as job:
        _, port, secret, _ = job.where.split()
        agent = job.call(f"127.0.0.1,127.0.0.2 {port} {secret} 15")
        agent.tell(4, Named(4, "a"), Returned("x" * 10**6))
        job.until(lambda: 4 in job.inbox.ranks and job.inbox.ranks[4].value)
        assert job.inbox.ranks[4].value == "x" * 10**6
        job.inbox.tell_all(End(7))
        job.until(lambda: agent.orders)
        assert agent.orders == [End(7)]
        for one in job.inbox.connections:
            one.connection.shutdown(socket.SHUT_RDWR)
        job.until(lambda: agent.broken)


def test_an_agent_that_is_late_misses_no_order() -> None:
    """The monitor goes on meanwhile, and keeps what the connection cannot take."""
    with _job() as job:
        (agent,) = job.name(1)
        orders = [Input("x" * 50_000 + str(number)) for number in range(200)]
        for order in orders:
            job.inbox.tell_all(order)
            job.inbox.take(0)
        job.until(lambda: len(agent.orders) == 200)
        assert agent.orders == orders


def test_a_stranger_is_not_heard() -> None:
    """Neither without the secret nor with words that are none; of an agent such a line ends that agent alone."""
    with _job() as job:
        port = job.where.split()[1]
        stranger = job.call(f"127.0.0.1 {port} {'0' * 64} 15")
        stranger.tell(0, Named(0, "evil"))
        job.until(lambda: not stranger.connection.open)
        assert stranger.broken == []
        for rude in (b"\x00\xff{\n[1]\n", b"[" * 100_000 + b"\n", b'[0, "Done", {}]\n'):
            with socket.create_connection(("127.0.0.1", int(port))) as connection:
                connection.sendall(rude)
                for _ in range(20):
                    job.inbox.take(0.01)
        assert job.inbox.ranks == {}
        agent, other = job.call(), job.call()
        other.tell(1, Named(1, "a"))
        agent.connection.outgoing += b"[" * 100_000 + b"\n"
        job.until(lambda: agent.broken and job.inbox.ranks)
        assert set(job.inbox.ranks) == {1}


def test_a_forked_rank_keeps_no_socket_of_the_monitor() -> None:
    """Neither the listening ones, that of the metrics included, nor an agent's; the monitor goes on to hear it."""
    with _job() as job:
        server = HttpServer(socket.create_server(("127.0.0.1", 0)), job.inbox.selector, {})
        (agent,) = job.name(1)
        if not (rank := os.fork()):
            job.inbox.close_files()
            own = (server.listener, job.inbox.acceptor.listener, *(one.connection for one in job.inbox.connections))
            os._exit(0 if len(own) == 3 and all(each.fileno() < 0 for each in own) else 1)
        assert os.waitpid(rank, 0)[1] == 0
        agent.tell(0, Exited(0))
        job.until(lambda: job.inbox.ranks[0].is_over)
        server.close()


def test_a_false_monitor_is_not_believed() -> None:
    """Who answers first, but does not know the secret, gives no orders; the true one is found beside it."""
    with _job() as job:
        _, port, secret, _ = job.where.split()
        with socket.create_server(("127.0.0.2", int(port))) as false:
            agent = job.call(f"127.0.0.2,127.0.0.1 {port} {secret} 15")
            agent.tell(1, Named(1, "a"))
            connection, _ = false.accept()
            with connection:
                connection.sendall(b'{"end": 7}\n' * 20)
                job.until(lambda: job.inbox.ranks)
                assert secret.encode() not in connection.recv(4096)
            assert agent.orders == []
            assert agent.connection.connection


@pytest.mark.parametrize(("host_timeout", "milliseconds"), [(15, 14_500), (1, 1000), (86_400, 86_399_500)])
def test_an_order_waits_for_a_silent_host_as_long_as_a_probe(host_timeout: float, milliseconds: int) -> None:
    """TCP_USER_TIMEOUT is in milliseconds. Linux sends 127 probes at most: then they are further apart."""
    with _job(host_timeout=host_timeout) as job:
        job.name(1)
        (connection,) = (one.connection for one in job.inbox.connections)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds
        pause, number = (
            connection.getsockopt(socket.IPPROTO_TCP, one) for one in (socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert max(1, host_timeout * 0.99 - pause) <= pause * number <= host_timeout


@pytest.mark.timed
def test_without_file_descriptors_it_does_not_spin() -> None:
    """A caller that cannot be let in yet is let in later, and meanwhile no processor is used."""
    with _job() as job:
        job.call().tell(1, Named(1, "a"))
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = os.dup(0)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 1, before[1]))
            used, until = time.process_time(), time.monotonic() + 1.0
            while time.monotonic() < until:
                job.inbox.take(0.2)
            assert time.process_time() - used < 0.2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            os.close(taken)
        job.until(lambda: job.inbox.ranks)


@pytest.mark.timed
def test_a_long_value_takes_time_in_proportion() -> None:
    """30 MB in a second: what has been searched for a line's end is not searched again."""
    with _job() as job:
        used = time.process_time()
        job.call().tell(1, Named(1, "a"), Returned("x" * 30_000_000))
        job.until(lambda: job.inbox.ranks)
        assert time.process_time() - used < 2  # 17 s, when each piece was searched from the beginning


@pytest.mark.timed
def test_a_failure_ends_the_job_at_once() -> None:
    with _job(3) as job:
        agents = job.name(3)
        agents[1].tell(1, Failed(FAILURE))
        job.until(lambda: job.inbox.failed)
        begin = time.monotonic()
        assert job.end().first.rank == 1
        assert time.monotonic() < begin + SETTLE + 1
        job.until(lambda: all(agent.orders for agent in agents))
        assert agents[0].orders == [End(3)]


def test_without_abort_a_rank_that_has_not_connected_yet_may_go_on() -> None:
    """The other one has failed before this one was heard of."""
    with _job(2, abort=False) as job:
        agents = [job.call() for _ in range(2)]
        agents[1].tell(1, Named(1, "b"), Failed(FAILURE), Exited(3))
        job.until(lambda: job.inbox.failed)
        job.monitor.look()
        assert not job.monitor.ending
        agents[0].tell(0, Named(0, "b"))
        job.until(lambda: len(job.inbox.ranks) == 2)
        job.monitor.look()
        assert not job.monitor.ending
        agents[0].tell(0, Exited(0))
        assert job.end().first.rank == 1


def test_ranks_that_refuse_together_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late one of them is: it has yet to say why, and to write that into its log."""
    monkeypatch.setattr(monitoring, "DOUBT", 0.0)
    refused = replace(FAILURE, together=True)
    with _job(3) as job:
        agents = job.name(3)
        for rank in (1, 2):
            agents[rank].tell(rank, Failed(refused), Exited(3))
        job.until(lambda: len(job.inbox.failed) == 2, look=True)
        for _ in range(3):
            time.sleep(0.01)
            job.monitor.look()
        assert not job.monitor.ending
        agents[0].tell(0, Failed(refused), Exited(3))
        assert job.end().everywhere


def test_ranks_that_stand_still_are_asked_where() -> None:
    """And then the job ends, with an exit code of its own."""
    with _job(2, stall_timeout=0.3) as job:
        agents = job.name(2)
        job.until(lambda: all(agent.orders for agent in agents), look=True)
        assert agents[0].orders == [ShowStacks()]
        for rank, agent in enumerate(agents):
            agent.tell(rank, _stack(3, "wait"))
        verdict = job.end()
        assert verdict.exit_code == 124
        assert verdict.stacks[0]["ranks"] == [0, 1]


def test_without_abort_ranks_that_wait_for_a_failed_one_are_found() -> None:
    """A stall: the first failure is the verdict, and the stacks show where the others wait for it."""
    with _job(2, stall_timeout=0.3, abort=False) as job:
        agents = job.name(2)
        agents[1].tell(1, Failed(FAILURE), Exited(3))
        job.until(lambda: agents[0].orders, look=True)
        assert agents[0].orders == [ShowStacks()]
        agents[0].tell(0, _stack(3, "wait"))
        verdict = job.end()
        assert (verdict.first.rank, verdict.exit_code) == (1, FAILURE.exit_code)
        assert verdict.stacks[0]["ranks"] == [0]


def test_ranks_that_went_on_are_asked_anew() -> None:
    """A stall that ended by itself is forgotten: the next one shows where the ranks stand then."""
    with _job(stall_timeout=0.3) as job:
        (agent,) = job.name(1)
        job.until(lambda: agent.orders, look=True)
        agent.tell(0, _stack(1, "first"))
        agent.tell(0, Progress({"epoch": 2}, -3600.0))
        job.until(lambda: job.inbox.ranks[0].progress)
        job.monitor.look()
        job.inbox.ranks[0].moved -= 3600.0
        job.inbox.moved -= 3600.0
        job.until(lambda: len(agent.orders) == 2, look=True)
        assert not job.monitor.ending
        agent.tell(0, _stack(2, "second"))
        assert "second" in job.end().stacks[0]["where"]


def test_ranks_in_different_collectives_end_the_job_with_both_names() -> None:
    """They wait for each other without end; nobody had to ask for a stall's timeout."""
    with _job(2) as job:
        agents = job.name(2)
        for rank, operation in enumerate((Operation.EXCHANGE, Operation.BARRIER)):
            kinds = bytes((Operation.ALL_REDUCE, operation)).hex()
            agents[rank].tell(rank, Progress({}, 1.0, calls=7, kinds=kinds))
        job.until(lambda: all(agent.orders for agent in agents), look=True)
        for rank, agent in enumerate(agents):
            agent.tell(rank, _stack(rank, "train"))
        verdict = job.end()
        assert (verdict.exit_code, verdict.first.final) == (1, True)
        assert "rank 0 is at an exchange of rows (collective 7) and rank 1 is at barrier" in verdict.line
        assert [group["ranks"] for group in verdict.stacks] == [[0], [1]]


def test_progress_that_is_sent_late_counts_from_when_it_was_made() -> None:
    """An agent sends at most two messages a second; a stall begins with the last progress, not with its message."""
    with _job() as job:
        (agent,) = job.name(1)
        job.inbox.ranks[0].moved = 0.0
        agent.tell(0, Progress({"epoch": 1}, 3.0))
        job.until(lambda: job.inbox.ranks[0].progress)
        assert 3.0 <= time.monotonic() - job.inbox.ranks[0].moved < 13.0
        agent.tell(0, Progress({"epoch": 2}, 0.0))
        agent.tell(0, Progress({"epoch": 3}, 20.0))
        job.until(lambda: job.inbox.ranks[0].progress["epoch"] == 3)
        assert time.monotonic() - job.inbox.ranks[0].moved < 13.0


def test_the_first_rank_has_a_limit() -> None:
    """From the moment at which the launcher was started: other nodes may have been awaited before."""
    with _job(2, several=True, start_limit=0.3) as job:
        time.sleep(0.4)
        job.monitor.begin()
        job.monitor.look()
        assert not job.monitor.ending
        verdict = job.end()
        assert (verdict.exit_code, verdict.first.cause) == (1, Cause.NEVER_BEGAN)
        assert "(--timeout): the other hosts must reach this one" in verdict.line


def test_ranks_that_are_never_heard_of_stand_still_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that hangs, say: the job ends, but not while a slow machine starts its ranks.

    An agent that connects later gets the message that the job has ended.
    """
    monkeypatch.setattr(monitoring, "START", 0.6)
    with _job(2, stall_timeout=0.1) as job:
        time.sleep(0.2)
        job.monitor.look()
        job.monitor.look()
        assert not job.monitor.ending
        assert job.end().exit_code == 124
        late = job.call()
        late.tell(0, Named(0, "a"))
        job.until(lambda: late.orders)
        assert late.orders == [End(124)]
