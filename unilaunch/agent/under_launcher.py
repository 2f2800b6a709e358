"""Under a launcher of others: the launcher's child is the guard of an agent, and the agent supervises one rank.

The guard is a small process: it ends what a killed agent leaves. The kernel kills a rank when its agent exits, but not
what the rank has started; the guard is the nearest process to which the kernel gives such orphans.
"""

import json
import mmap
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, cast

from unilaunch.agent.channel import fork_rank
from unilaunch.agent.processes import (
    PASSED_ON,
    adopt_orphans,
    children,
    fork,
    pass_signals_on,
    state,
    wait_for,
    wake_at_end_of,
)
from unilaunch.errors import UnilaunchError
from unilaunch.launchers import detect
from unilaunch.rank.interpreter import run_rank_and_end
from unilaunch.rank.status import Status
from unilaunch.spec.variables import MONITOR, NO_WINDOWS, WINDOWS, Windows

_TICK = 0.02
_LONGEST = 5.0
#: A process that has ended, whether or not its parent has noticed.
_ENDED = {"Z", ""}


def supervise(environ: Mapping[str, str], be_rank: Callable[[Status], int]) -> int:
    """Call *be_rank* in a new process, the rank, and exit with its exit code: 128 + N for signal N.

    Call it before anything large is imported: this process becomes the guard, and keeps what is loaded.

    Args:
        environ: The process's environment.
        be_rank: Does the rank's work; in the rank, this function returns its value.
    """
    launcher, guard = os.getppid(), os.getpid()
    shared = mmap.mmap(-1, 1)  # one byte: 1 if the guard must not wake the launcher
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until somebody passes them on
    agent = fork("the agent of a rank")
    if agent:
        _guard(agent, launcher, shared, environ)
    wake_at_end_of(guard)
    pid, channel = fork_rank(_windows(environ), own_group=not os.isatty(0), has_input=MONITOR in environ)
    if not pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        return run_rank_and_end(be_rank, channel.be_rank())
    from unilaunch.agent.agent import Agent  # the rank does its imports at the same time
    from unilaunch.agent.output import find_hidden_output

    supervisor = Agent(environ, guard)
    supervisor.add(pid, channel, find_hidden_output(launcher, environ))
    pass_signals_on(supervisor.note_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    code = supervisor.run()
    shared[0] = bool(supervisor.connection and supervisor.connection.host_lost)
    os._exit(code)  # the agent has nothing that Python must destroy; that would take a tenth of a second


def _windows(environ: Mapping[str, str]) -> Windows:
    """Return the terminals of rank 0 that `launch` wants."""
    with suppress(UnilaunchError):  # the rank says so
        if WINDOWS in environ and detect(environ).rank == 0:
            return cast("Windows", json.loads(environ[WINDOWS]))
    return NO_WINDOWS


def _guard(agent: int, launcher: int, shared: mmap.mmap, environ: Mapping[str, str]) -> NoReturn:
    """Be the guard of an agent: pass signals on, and exit with the agent's exit code."""
    adopt_orphans()
    pass_signals_on(lambda number, _: os.kill(agent, number))  # a child that was not waited for keeps its number
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    wake_at_end_of(launcher)
    code = wait_for(agent, launcher)
    if not shared[0]:
        _wake_launcher(launcher, code, environ)
    os._exit(code)


def _wake_launcher(launcher: int, code: int, environ: Mapping[str, str]) -> None:
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
