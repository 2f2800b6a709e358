"""How the ranks of a host get their agent: one for all that are alike, or one for each."""

import atexit
import fcntl
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from unilaunch.agent import shim as shims
from unilaunch.agent.agent import Agent
from unilaunch.agent.channel import Channel
from unilaunch.agent.circumstances import LIMITS, circumstances
from unilaunch.agent.hidden_output import find_hidden_output
from unilaunch.agent.processes import PASSED_ON, hear_signals_again, is_single, pass_signals_on, state
from unilaunch.agent.requests import Requests
from unilaunch.agent.shim import Shim
from unilaunch.agent.wake import wake_launcher
from unilaunch.limits import allow_files
from unilaunch.rank.status import Status
from unilaunch.start_variables import attempt_of, may_start_again

_TICK = 0.2
_FILES = 16  # open files of each rank in its agent, at most
_IDLE = 5.0  # seconds without a rank after which nobody else is waited for
#: Imports what every rank would, and returns the variables that this has set; every rank is on its own if it returns
#: None or raises.
Preload = Callable[[], Mapping[str, str] | None]
#: Is the rank; given when the launcher's child began to work, and its status channel.
Work = Callable[[float, Status], int]


def supervise(environ: Mapping[str, str], started: float, preload: Preload, work: Work) -> int:
    """Do *work* in a process of its own, the rank, and return what it exits with: 128 + N for signal N.

    Args:
        environ: The process's environment.
        started: When this process began to work, in seconds of `time.monotonic`.
        preload: See above.
        work: See above; in the rank this function returns what it returns.
    """
    launcher, own = os.getppid(), circumstances(environ)
    address = shims.address_of(own, environ)
    if not (own and address):
        return supervise_alone(environ, started, work)
    door = shims.bind(address)
    if door and not os.fork():
        rank = _serve(_Host(door, own, launcher, shims.local_size(environ)), preload)
        return _live(work, rank.started, rank.status)
    if door:
        door.close()
    connection = shims.ask(address, started, own, environ)
    if not connection:
        return supervise_alone(environ, started, work)
    code = shims.stand_for(connection, launcher)
    wake_launcher(launcher, code, environ)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def supervise_alone(environ: Mapping[str, str], started: float, work: Work) -> int:
    """Be the agent of one rank. Arguments and value as of `supervise`."""
    launcher, channel, own_group = os.getppid(), Channel(), not os.isatty(0)
    pid = os.fork()
    if not pid:
        channel.close()
        return _live(work, started, channel.be_rank(own_group=own_group))
    agent = Agent(environ, launcher)
    agent.add(pid, channel, None, find_hidden_output(launcher, environ), own_group=own_group)
    pass_signals_on(agent.pass_signal_on)
    while not agent.is_over:
        agent.turn()
    agent.leave()
    code = agent.code_of(agent.ranks[0])
    if not (agent.connection and agent.connection.host_lost):
        wake_launcher(launcher, code, environ)
    return code


def _live(work: Work, started: float, status: Status) -> int:
    """Do the rank's work; one that ends without the others leaves at once, for MPI_Finalize would wait for them."""
    code = work(started, status)
    if status.released:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  (threads that save come to their end)
    if status.failed or status.released:
        atexit._run_exitfuncs()  # noqa: SLF001  (the program's own; there is no public name)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


@dataclass(frozen=True, slots=True)
class _Forked:
    """A rank, in its own process."""

    started: float
    status: Status


class _Host:
    """The agent of the ranks of a host, and where they ask for it.

    Args:
        door: The listening socket.
        own: The circumstances in which a process must be to be forked from this one.
        launcher: The launcher's process number.
        expected: How many may ask.
    """

    def __init__(self, door: socket.socket, own: Mapping[str, Any], launcher: int, expected: int) -> None:
        self.requests = Requests(door, own)
        self.own, self.launcher, self.expected = own, launcher, expected
        self.variables: Mapping[str, str] = {}
        self.agent: Agent | None = None
        self.attempt = 0
        self.idle_since = time.monotonic()
        self.may_start_again = False
        self.replaced: Mapping[signal.Signals, Any] = {}

    def grant(self) -> None:
        """Offer a rank to each that waits; those of a new attempt wait until the ranks of the last one have ended."""
        for shim in list(self.requests.waiting):
            environ = shim.request["environ"]
            agent, attempt = self.agent or self._start(environ), attempt_of(environ)
            if attempt > self.attempt and not agent.is_over:
                continue
            if attempt > self.attempt and agent.is_connected:
                self.attempt, self.requests.asked = attempt, len(self.requests.waiting)
                agent.begin_again(attempt)
            if attempt == self.attempt:
                self.may_start_again = may_start_again(environ)
                self.requests.offer(shim)
            else:  # of an earlier start, or nobody would hear of its rank: it has an agent of its own
                self.requests.send_away(shim)

    def fork_next(self, agent: Agent) -> "_Forked | None":
        """Fork the rank of the first that has taken an offer; return it in the rank itself."""
        shim = self.requests.taken.pop(0)
        channel = Channel()
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        pid = os.fork()
        if not pid:
            hear_signals_again(self.replaced)
            self.requests.close()
            agent.forget()
            channel.close()
            return _become(shim, channel, self.variables, self.own["limits"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        hidden = find_hidden_output(shim.request["launcher"], shim.request["environ"])
        agent.add(pid, channel, shim, hidden, own_group=True)
        return None

    def _start(self, environ: Mapping[str, str]) -> Agent:
        self.agent, self.attempt = Agent(environ, 0), attempt_of(environ)
        self.agent.loop.watch(self.requests.selector.fileno(), partial(self.requests.take, 0))
        self.replaced = pass_signals_on(self.agent.pass_signal_on)  # Slurm sends them to every process of a step
        return self.agent

    def turn(self) -> None:
        """Wait for the next event, and do what it asks for."""
        if self.agent:
            self.agent.turn()
        self.requests.take(0 if self.agent else _TICK)
        self.grant()

    def complain(self, error: BaseException) -> None:
        """Say on the ranks' consoles that the agent fails, and they with it."""
        for one in self.agent.ranks if self.agent else []:
            if not one.dismissed:
                said = f"unilaunch: the agent of this host fails, and its ranks end: {error!r}\n"
                one.rank.output.streams[1].say(said)

    @property
    def is_over(self) -> bool:
        """Every rank has ended, and nobody else will ask."""
        now = time.monotonic()
        if not self.requests.is_empty or (self.agent and not self.agent.is_over):
            self.idle_since = now
            return False
        if self.may_start_again and self.agent and self.agent.is_connected:
            self.agent.leave_behind()
            return False  # the next attempt needs no import
        nobody_else = self.requests.asked >= self.expected or now - self.idle_since > _IDLE
        return (self.agent is not None and nobody_else) or state(self.launcher) in {"", "Z"}


def _serve(host: _Host, preload: Preload) -> _Forked:
    """Be the agent of a host until its last rank has ended; return in a rank that was forked."""
    try:
        os.setsid()  # what a launcher sends to its child's group or session comes through the shim
        _let_go_of_files()
        variables = preload()
        if variables is None or not is_single():
            os._exit(0)
        host.variables = variables
        if not allow_files(_FILES * host.expected):
            os._exit(0)
        _point_nowhere(1, 2)
        while not host.is_over:
            host.turn()
            while host.agent and host.requests.taken:
                if rank := host.fork_next(host.agent):
                    return rank
        host.requests.close()
        if host.agent:
            host.agent.leave()
    except BaseException as error:  # noqa: BLE001  (before the first rank it goes wrong in the ranks too, which say so)
        host.complain(error)
        os._exit(1)
    os._exit(0)


def _become(shim: Shim, channel: Channel, variables: Mapping[str, str], limits: Sequence[Sequence[int]]) -> _Forked:
    """Be the rank that a shim has asked for: with its environment, limits, processors and open files."""
    request, files = shim.request, shim.files
    os.environ.clear()  # noqa: TID251  (another process's takes its place)
    os.environ.update({**request["environ"], **variables})  # noqa: TID251
    os.sched_setaffinity(0, request["processors"])
    soft, hard = limits[LIMITS.index("RLIMIT_NOFILE")]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    above = max([2, *request["files"]]) + 1  # no number that is to be taken
    shim.connection.close()
    channel.move_ranks_ends(above)
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    return _Forked(request["started"], channel.be_rank(own_group=True))


def _let_go_of_files() -> None:
    """Close what the first asker was started with, but for where an import may say something."""
    _point_nowhere(0)
    for file in shims.open_files():
        if file > 2:  # noqa: PLR2004  (standard error)
            os.close(file)


def _point_nowhere(*files: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for file in files:
        os.dup2(nowhere, file)
    os.close(nowhere)
