"""Wake mpirun of Open MPI 4, which sleeps for up to two seconds before it ends a job that failed.

When a process has ended with an exit code, mpirun (and on another host its daemon, orted) sends the host's others
SIGCONT, sleeps a second, sends SIGTERM, sleeps another second, and sends SIGKILL: Open MPI 4.1, function
orte_odls_base_default_kill_local_procs. SIGCHLD ends a sleep early. If the other processes have exited before the sleep
begins, no SIGCHLD arrives.
"""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from unilaunch.agent.processes import children, state
from unilaunch.errors import UnilaunchError
from unilaunch.launchers import detect

_TICK = 0.02
_LONGEST = 5.0
#: A process that has ended, whether or not its parent has noticed.
_ENDED = {"Z", ""}


def wake_launcher(launcher: int, code: int, environ: Mapping[str, str]) -> None:
    """Start a process that sends SIGCHLD to the launcher once all of the launcher's processes on this host have exited.

    Only the first process of each host does this.

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
