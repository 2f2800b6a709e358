"""Under another's launcher: the launcher's child is the guard of an agent, and the agent supervises one rank."""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unilaunch.agent.channel import fork_rank
from unilaunch.agent.guard import fork_below_guard
from unilaunch.agent.processes import PASSED_ON, children, pass_signals_on, state
from unilaunch.errors import UnilaunchError
from unilaunch.launchers import detect
from unilaunch.spec.variables import MONITOR

if TYPE_CHECKING:
    from unilaunch.rank.status import Status

#: Does the rank's work. Arguments: when the launcher's child started, and the status channel.
Work = Callable[[float, "Status"], int]
_TICK = 0.02
_LONGEST = 5.0
#: A process that has ended, whether or not its parent has noticed.
_ENDED = {"Z", ""}


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


def wake_launcher(launcher: int, code: int, environ: Mapping[str, str]) -> None:
    """Start a process that sends SIGCHLD to the launcher once all of the launcher's processes on this host have exited.

    Only the first process of each host does this. Open MPI 4 sleeps for up to two seconds before it ends a job that
    failed: when a process has ended with an exit code, mpirun (and on another host its daemon, orted) sends the host's
    others SIGCONT, sleeps a second, sends SIGTERM, sleeps another second, and sends SIGKILL (4.1, function
    orte_odls_base_default_kill_local_procs). SIGCHLD ends a sleep early. If the other processes have exited before the
    sleep begins, no SIGCHLD arrives.

    Args:
        launcher: The launcher's process number; the launcher may have exited.
        code: The exit code of this process, the launcher's child; for 0 this function does nothing.
        environ: This process's environment.
    """
    if not code or launcher != os.getppid() or not Path(f"/proc/{launcher}/task/{launcher}/children").exists():
        return
    with suppress(UnilaunchError, OSError):  # no more processes can be made: then mpirun sleeps
        info = detect(environ)
        if info.wake and info.local_rank == 0 and not os.fork():
            try:
                _wake(launcher)
            finally:
                os._exit(0)


def _wake(launcher: int) -> None:
    until = time.monotonic() + _LONGEST
    os.setsid()
    os.chdir("/")
    for file in list(Path("/proc/self/fd").iterdir()):  # the launcher waits until these files are closed
        with suppress(OSError):
            os.close(int(file.name))
    while state(launcher) not in _ENDED and time.monotonic() < until:
        if all(state(child) in _ENDED for child in children(launcher) if child != os.getpid()):
            os.kill(launcher, signal.SIGCHLD)
        time.sleep(_TICK)
