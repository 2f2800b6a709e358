"""The control connection between agents and the monitor, over real sockets."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from selectors import DefaultSelector
from typing import Any

import pytest

from jobs.mpirun import wait_until
from unilaunch.folder.failure import Cause, Failure
from unilaunch.monitor.connection import Connection, listen
from unilaunch.monitor.inbox import Inbox
from unilaunch.monitor.messages import End, Exited, Failed, Input, Message, Named, Progress, Returned, ShowStacks, Stack
from unilaunch.monitor.monitor import Monitor
from unilaunch.monitor.verdict import Verdict

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "agents.py"
FAILURE = Failure(Cause.EXCEPTION, "broken", 3, error="ValueError", rank=1, host="b")


class _Agent:
    """One end of the connection, with its own loop."""

    def __init__(self, where: str) -> None:
        self.selector = DefaultSelector()
        self.orders, self.broken = list[Message](), list[str]()
        heed = (lambda _, order: self.orders.append(order)), self.broken.append
        self.connection = Connection(where, self.selector, *heed)

    def tell(self, rank: int, *told: Any) -> None:
        for message in told:
            self.connection.send(message, rank)


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
        def turn() -> object:
            if look:
                self.monitor.look()
            self.inbox.take(0.01)
            for agent in self.agents:
                for key, _ in agent.selector.select(0.01):
                    key.data()
                agent.connection.look()
            return done()

        wait_until(turn, 10, pause=0)

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
                agent.connection.dials.close()
                if agent.connection.connection:
                    agent.connection.connection.close()
                agent.selector.close()


def test_words_and_orders_pass() -> None:
    """A megabyte too, though neither end ever waits for the other; a dead address among several does no harm.

    An agent that is late misses no order: the monitor goes on meanwhile, and keeps what the connection cannot take.
    """
    with _job() as job:
        _, port, secret, _ = job.where.split()
        agent = job.call(f"127.0.0.1,127.0.0.2 {port} {secret} 15")
        agent.tell(4, Named(4, "a"), Returned("x" * 10**6))
        job.until(lambda: 4 in job.inbox.ranks and job.inbox.ranks[4].value)
        assert job.inbox.ranks[4].value == "x" * 10**6
        orders: list[Input | End] = [*(Input("x" * 50_000 + str(number)) for number in range(200)), End(7)]
        for order in orders:
            job.inbox.tell_all(order)
            job.inbox.take(0)
        job.until(lambda: len(agent.orders) == len(orders))
        assert agent.orders == orders
        for one in job.inbox.connections:
            one.connection.shutdown(socket.SHUT_RDWR)
        job.until(lambda: agent.broken)


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
        pause = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        number = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert max(1, host_timeout * 0.99 - pause) <= pause * number <= host_timeout


def test_without_abort_a_rank_that_has_not_connected_yet_may_go_on() -> None:
    """The other one has failed before this one was heard of."""
    with _job(2, abort=False) as job:
        late, failing = job.call(), job.call()
        failing.tell(1, Named(1, "b"), Failed(FAILURE), Exited(3))
        job.until(lambda: job.inbox.failed)
        job.monitor.look()
        assert not job.monitor.ending
        late.tell(0, Named(0, "b"))
        job.until(lambda: len(job.inbox.ranks) == 2, look=True)
        job.monitor.look()
        assert not job.monitor.ending
        late.tell(0, Exited(0))
        assert job.end().first.rank == 1


def test_without_abort_ranks_that_wait_for_a_failed_one_are_found() -> None:
    """A stall: the first failure is the verdict, and the stacks show where the others wait for it."""
    with _job(2, stall_timeout=0.3, abort=False) as job:
        agents = job.name(2)
        agents[1].tell(1, Failed(FAILURE), Exited(3))
        job.until(lambda: agents[0].orders, look=True)
        assert agents[0].orders == [ShowStacks()]
        agents[0].tell(0, Stack('  File "train.py", line 1 in wait\n', {}))
        verdict = job.end()
        assert (verdict.first.rank, verdict.exit_code) == (1, FAILURE.exit_code)
        assert verdict.stacks[0]["ranks"] == [0]


def test_progress_that_is_sent_late_counts_from_when_it_was_made() -> None:
    """An agent sends at most two messages a second; a stall begins with the last progress, not with its message."""
    with _job() as job:
        (agent,) = job.name(1)
        job.inbox.ranks[0].moved = 0.0
        agent.tell(0, Progress({"epoch": 1}, 3.0))
        job.until(lambda: job.inbox.ranks[0].progress)
        assert 3.0 <= time.monotonic() - job.inbox.ranks[0].moved < 13.0
        agent.tell(0, Progress({"epoch": 2}, 0.0), Progress({"epoch": 3}, 20.0))
        job.until(lambda: job.inbox.ranks[0].progress["epoch"] == 3)
        assert time.monotonic() - job.inbox.ranks[0].moved < 13.0


@pytest.mark.timed
def test_the_monitors_work_is_proportional_to_the_agents() -> None:
    """Its processor time for each of 3,000 (simulated) agents is at most 1.6 times that for each of 300."""
    line = [sys.executable, str(SCRIPT), "--agents", "300", "3000"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode == 2:  # the system allows too few open files
        pytest.skip(f"this machine lacks open files: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
