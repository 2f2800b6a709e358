"""The guard: the small process above an agent, which ends what a killed agent leaves.

The kernel kills a rank when its agent exits, but not what the rank has started. The guard is the nearest process to
which the kernel gives such orphans.
"""

import mmap
import os
import signal
from collections.abc import Callable

from unilaunch.agent.processes import (
    PASSED_ON,
    adopt_orphans,
    kill_children,
    pass_signals_on,
    wake_at_end_of,
)


class Guard:
    """The agent's view of its guard.

    Args:
        pid: The guard's process number.
        page: One byte, which guard and agent share.
    """

    def __init__(self, pid: int, page: mmap.mmap) -> None:
        self.pid, self._page = pid, page

    def leave_launcher_alone(self) -> None:
        """Let the guard exit without its last action."""
        self._page[0] = 1


def fork_below_guard(last_action: Callable[[int], None]) -> Guard:
    """Fork; return in the child, the agent. This process stays above it as its guard, and exits with its exit code.

    Call it before anything large is imported: the guard keeps what is loaded.

    Args:
        last_action: Called in the guard with the agent's exit code, before the guard exits.
    """
    page = mmap.mmap(-1, 1)
    own, launcher = os.getpid(), os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    agent = os.fork()
    if not agent:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        wake_at_end_of(own)
        return Guard(own, page)
    adopt_orphans()
    pass_signals_on(lambda number, _: os.kill(agent, number))  # a child that was not waited for keeps its number
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    wake_at_end_of(launcher)
    code = wait_for(agent, launcher)
    if not page[0]:
        last_action(code)
    os._exit(code)


def wait_for(agent: int, launcher: int = 0) -> int:
    """Wait until an agent has ended, end what it has left if it failed, and return its exit code: 128 + N for signal N.

    What the ranks of a job that ended well have left running stays. If the launcher has exited, this process exits at
    once: the agent notices that, and ends its ranks. The signals that are passed on stay blocked: once the agent has
    ended, its number may be that of another process.

    Args:
        agent: The agent's process number.
        launcher: The process above this one, whose end is noticed; 0: none.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    while not (status := _reap(agent)):
        if launcher and os.getppid() != launcher:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        signal.sigwaitinfo([signal.SIGCHLD])
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    code = os.waitstatus_to_exitcode(status[0])
    if code:
        kill_children()
    return code if code >= 0 else 128 - code


def _reap(agent: int) -> tuple[int] | None:
    """Reap the processes that have ended, also orphans of the agent's ranks; return the agent's status if it has."""
    while True:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == agent:
            return (status,)
        if not process:
            return None
