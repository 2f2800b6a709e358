"""The agent of a host: it answers requests for ranks, forks the ranks, and supervises them."""

import fcntl
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unilaunch.agent import shim as shims
from unilaunch.agent.agent import Agent
from unilaunch.agent.channel import Channel
from unilaunch.agent.circumstances import LIMITS
from unilaunch.agent.hidden_output import find_hidden_output
from unilaunch.agent.processes import PASSED_ON, children, hear_signals_again, pass_signals_on, state
from unilaunch.agent.requests import Requests
from unilaunch.agent.shim import Shim
from unilaunch.launchers.ancestry import stand_below
from unilaunch.limits import allow_files
from unilaunch.rank.status import Status
from unilaunch.start_variables import attempt_of, may_start_again

_TICK = 0.2
_FILES = 16  # open files of each rank in its agent, at most
_IDLE = 5.0  # seconds without a rank after which the agent expects no more requests
#: Imports the modules that every rank needs, and returns the environment variables that this has set. If it returns
#: None or raises, every rank gets its own agent and imports by itself.
Preload = Callable[[], Mapping[str, str] | None]
#: What a forked rank gets: when its shim started, and its status channel.
Forked = tuple[float, Status]


class Host:
    """The agent of the ranks of a host, and the socket for their requests.

    Args:
        door: The listening socket.
        own: The agent's fingerprint; only requests with an equal one are granted.
        launcher: The launcher's process number.
        expected: Number of requests to expect.
    """

    def __init__(self, door: socket.socket, own: Mapping[str, Any], launcher: int, expected: int) -> None:
        self.requests = Requests(door, own)
        self.own, self.launcher, self.expected = own, launcher, expected
        self.variables: Mapping[str, str] = {}
        self.agent: Agent | None = None
        self.idle_since = time.monotonic()
        self.may_start_again = False
        self.replaced: Mapping[signal.Signals, Any] = {}

    def grant(self) -> None:
        """Offer a rank to each waiting shim; shims of a new attempt wait until all ranks of the previous one ended."""
        for shim in list(self.requests.waiting):
            environ = shim.request["environ"]
            agent, attempt = self.agent or self._start(environ), attempt_of(environ)
            if attempt > agent.attempt and not agent.is_over:
                continue
            if attempt > agent.attempt and agent.is_connected:
                self.requests.asked = len(self.requests.waiting)
                self.launcher, self.expected = shim.request["launcher"], shims.local_size(environ)
                allow_files(_FILES * self.expected)  # without a lost host, this one may have more ranks
                agent.begin_again(attempt)
            if attempt == agent.attempt:
                self.may_start_again = may_start_again(environ)
                self.requests.offer(shim)
            else:  # of an earlier attempt, or there is no monitor: it needs its own agent
                self.requests.send_away(shim)

    def fork_next(self, agent: Agent) -> Forked | None:
        """Fork the rank of the first shim that has acknowledged; return the rank's values in the rank, else None."""
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
        hidden = find_hidden_output(shim.request["launcher"], shim.request["environ"])
        agent.add(pid, channel, shim, hidden, own_group=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)  # not before: a signal must be noted for this rank too
        return None

    def _start(self, environ: Mapping[str, str]) -> Agent:
        self.agent = Agent(environ, 0)
        self.agent.loop.watch(self.requests.selector.fileno(), partial(self.requests.take, 0))
        # No signal that this process gets itself is passed on: Slurm, say, has sent it to every process of the step.
        self.replaced = pass_signals_on(partial(self.agent.note_signal, has_it=True))
        return self.agent

    def turn(self) -> None:
        """Wait for the next event, and handle it."""
        if self.agent:
            self.agent.turn()
        self.requests.take(0 if self.agent else _TICK)
        self.grant()

    def complain(self, error: BaseException) -> None:
        """Show on the ranks' consoles that the agent fails and that the ranks therefore end."""
        for one in self.agent.ranks if self.agent else []:
            if not one.dismissed:
                said = f"unilaunch: the agent of this host fails, and its ranks end: {error!r}\n"
                one.rank.output.streams[1].say(said)

    @property
    def is_over(self) -> bool:
        """Whether every rank has ended, and no more requests are expected."""
        now = time.monotonic()
        if not self.requests.is_empty or (self.agent and not self.agent.is_over):
            self.idle_since = now
            return False
        if self.may_start_again and self.agent and self.agent.is_connected:
            self.agent.rest()
            return False  # the next attempt needs no import
        nobody_else = self.requests.asked >= self.expected or now - self.idle_since > _IDLE
        return (self.agent is not None and nobody_else) or state(self.launcher) in {"", "Z"}


def serve(host: Host, preload: Preload) -> Forked:
    """Run the agent of a host until its last rank has ended; this function returns only in a forked rank."""
    try:
        os.setsid()  # the shim passes on signals that the launcher sends to its child's group or session
        _let_go_of_files()
        variables = preload()
        threads = list(Path("/proc/self/task").iterdir())
        if variables is None or len(threads) > 1 or children():  # a fork would not copy all of the state
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
    except BaseException as error:  # noqa: BLE001  (before the first rank: the ranks meet the same error and show it)
        host.complain(error)
        os._exit(1)
    os._exit(0)


def _become(shim: Shim, channel: Channel, variables: Mapping[str, str], limits: Sequence[Sequence[int]]) -> Forked:
    """Take over the shim's environment, limits, CPUs and open files, in the forked rank."""
    request, files = shim.request, shim.files
    os.environ.clear()  # noqa: TID251  (the shim's environment replaces it)
    os.environ.update({**request["environ"], **variables})  # noqa: TID251
    stand_below(request["launcher"])
    os.sched_setaffinity(0, request["processors"])
    soft, hard = limits[LIMITS.index("RLIMIT_NOFILE")]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    above = max([2, *request["files"]]) + 1  # above all numbers that are needed
    shim.connection.close()
    channel.move_ranks_ends(above)
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    return request["started"], channel.be_rank(own_group=True)


def _let_go_of_files() -> None:
    """Close the files that the first shim inherited, except the standard streams: an import may use them."""
    _point_nowhere(0)
    for file in shims.open_files():
        if file > 2:  # noqa: PLR2004  (standard error)
            os.close(file)


def _point_nowhere(*files: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for file in files:
        os.dup2(nowhere, file)
    os.close(nowhere)
