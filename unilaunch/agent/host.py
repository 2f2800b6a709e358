"""Start the agent of a host: one agent for all ranks with equal fingerprints, or one agent for each rank."""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from unilaunch.agent import shim as shims
from unilaunch.agent.circumstances import circumstances
from unilaunch.agent.processes import PASSED_ON, pass_signals_on
from unilaunch.agent.wake import wake_launcher
from unilaunch.cgroups import oom_kills
from unilaunch.errors import say

if TYPE_CHECKING:
    from unilaunch.agent.serving import Preload
    from unilaunch.rank.status import Status

#: Does the rank's work. Arguments: when the launcher's child started, and the status channel.
Work = Callable[[float, "Status"], int]


def supervise(environ: Mapping[str, str], started: float, preload: "Preload", work: Work) -> int:
    """Do *work* in a new process, the rank, and return its exit code: 128 + N for signal N.

    Args:
        environ: The process's environment.
        started: When this process started, in seconds of `time.monotonic`.
        preload: See `unilaunch.agent.serving`.
        work: See `Work`; in the rank, this function returns the value of *work*.
    """
    launcher, own, killed = os.getppid(), circumstances(environ), oom_kills()
    address = shims.address_of(own, environ)
    if not (own and address):
        return supervise_alone(environ, started, work)
    door = shims.bind(address)
    if door and not os.fork():
        try:
            from unilaunch.agent.serving import Host, serve  # a shim does not need this import
        except BaseException:  # noqa: BLE001  (the rank imports the same, and shows why it fails)
            os._exit(1)
        rank = serve(Host(door, own, launcher, shims.local_size(environ)), preload)
        return _live(work, *rank)
    if door:
        door.close()
    connection = shims.ask(address, started, own, environ)
    if not connection:
        return supervise_alone(environ, started, work)
    code = shims.stand_for(connection, launcher)
    if code < 0 and (killed := oom_kills() - killed):  # the agent, with the framework in it, can be the largest process
        say(f"the agent of this host was killed: the kernel's OOM killer ended {killed} process(es) of this cgroup")
    wake_launcher(launcher, code, environ)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def supervise_alone(environ: Mapping[str, str], started: float, work: Work) -> int:
    """Run the agent of one rank. Arguments and return value are those of `supervise`."""
    from unilaunch.agent.channel import Channel

    launcher, channel, own_group = os.getppid(), Channel(), not os.isatty(0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    pid = os.fork()
    if not pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        channel.close()
        return _live(work, started, channel.be_rank(own_group=own_group))
    from unilaunch.agent.agent import Agent  # the rank does its imports at the same time
    from unilaunch.agent.hidden_output import find_hidden_output

    agent = Agent(environ, launcher)
    agent.add(pid, channel, None, find_hidden_output(launcher, environ), own_group=own_group)
    pass_signals_on(agent.note_signal)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while not agent.is_over:
        agent.turn()
    agent.leave()
    agent.forget()
    code = agent.code_of(agent.ranks[0])
    if not (agent.connection and agent.connection.host_lost):
        wake_launcher(launcher, code, environ)
    return code


def _live(work: Work, started: float, status: "Status") -> int:
    """Do the rank's work. A rank that ends before the others exits at once: MPI_Finalize would wait for them."""
    code = work(started, status)
    if status.failed or status.released:
        from unilaunch.rank.interpreter import flush_files, run_exit_functions

        flush_files()  # first: the agent kills a failed rank whose threads or exit functions take long
        run_exit_functions()
        flush_files()
        os._exit(code)
    with suppress(OSError):  # the program may have closed every descriptor
        status.connection.close()
    return code
