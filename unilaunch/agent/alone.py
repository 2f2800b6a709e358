"""Under another's launcher: the launcher's child is the guard of an agent, and the agent supervises one rank."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from unilaunch.agent.channel import fork_rank
from unilaunch.agent.guard import fork_below_guard
from unilaunch.agent.processes import PASSED_ON, pass_signals_on
from unilaunch.agent.wake import wake_launcher
from unilaunch.spec.start_variables import MONITOR

if TYPE_CHECKING:
    from unilaunch.rank.status import Status

#: Does the rank's work. Arguments: when the launcher's child started, and the status channel.
Work = Callable[[float, "Status"], int]


def supervise(environ: Mapping[str, str], started: float, work: Work) -> int:
    """Do *work* in a new process, the rank, and exit with its exit code: 128 + N for signal N.

    Args:
        environ: The process's environment.
        started: When this process started, in seconds of `time.monotonic`.
        work: See `Work`; in the rank, this function returns the value of *work*.
    """
    launcher = os.getppid()
    guard = fork_below_guard(lambda code: wake_launcher(launcher, code, environ))
    own_group = not os.isatty(0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    pid, channel = fork_rank(has_input=MONITOR in environ)
    if not pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        channel.close()
        return live(work, started, channel.be_rank(own_group=own_group))
    from unilaunch.agent.agent import Agent  # the rank does its imports at the same time
    from unilaunch.agent.hidden_output import find_hidden_output

    agent = Agent(environ, guard.pid)
    agent.add(pid, channel, find_hidden_output(launcher, environ), own_group=own_group)
    pass_signals_on(agent.note_signal)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = agent.run()
    if agent.connection and agent.connection.host_lost:
        guard.leave_launcher_alone()
    os._exit(code)  # the agent has nothing that Python must destroy; that would take a tenth of a second


def live(work: Work, started: float, status: "Status") -> int:
    """Do the rank's work. A rank that ends before the others must not wait for them in MPI_Finalize."""
    code = work(started, status)
    if status.failed or status.left_alone:
        from unilaunch.rank.interpreter import end_alone, flush_files

        flush_files()  # first: the agent kills a failed rank whose threads or exit functions take long
        if status.registrations.has_exit_functions:
            status.registrations.tell_saving()
        if status.runs_program:
            gc.collect()  # as after a program that has not failed: see `work`
        end_alone(-signal.SIGTERM if status.terminated else code)
    if not status.runs_program and "triton._C.libtriton" not in sys.modules:  # Triton would report leaks
        gc.freeze()  # nothing of a user's is left to destroy: the interpreter ends in half of the time
    if status.failed or status.left_alone:
        return code
    with suppress(OSError):  # the program may have closed every descriptor
        status.connection.close()
    return code
