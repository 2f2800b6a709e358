"""What joins a rank and its agent: the output's pipes, the status channel, the status page, and a pipe for stacks."""

import faulthandler
import fcntl
import os
import signal
import socket
import sys
from contextlib import suppress

from unilaunch.agent.processes import die_with
from unilaunch.rank.status import STOP, Status
from unilaunch.rank.status_page import StatusPage

#: At this signal a rank writes its Python stacks; high, since programs use SIGUSR1 and SIGUSR2 themselves.
STACKS = signal.SIGRTMAX - 1


class Channel:
    """Made before the rank is forked; each of the two keeps its own ends."""

    def __init__(self) -> None:
        self.agent = os.getpid()
        self.page = StatusPage()
        self.control, self._ranks_control = socket.socketpair()
        pipes = [os.pipe() for _ in range(3)]
        self.stdout, self.stderr, self.stacks = (reading for reading, _ in pipes)
        self._ranks_ends = [writing for _, writing in pipes]

    def be_agent(self) -> None:
        """Keep the agent's ends."""
        self._ranks_control.close()
        for descriptor in self._ranks_ends:
            os.close(descriptor)

    def close(self) -> None:
        """Close the agent's ends."""
        self.control.close()
        for descriptor in (self.stdout, self.stderr, self.stacks):
            os.close(descriptor)

    def move_ranks_ends(self, above: int) -> None:
        """Give the rank's ends numbers from *above* on, so that the launcher's files can have theirs."""
        moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, above) for end in self._ranks_ends]
        control = fcntl.fcntl(self._ranks_control.fileno(), fcntl.F_DUPFD_CLOEXEC, above)
        self._ranks_control.close()
        for end in self._ranks_ends:
            os.close(end)
        self._ranks_control, self._ranks_ends = socket.socket(fileno=control), moved

    def be_rank(self, *, own_group: bool) -> Status:
        """Be the rank, once the agent's ends are closed: its output goes to the agent, and it dies with it.

        Args:
            own_group: It has a process group of its own; on a terminal Ctrl-C and input are for one group only.
        """
        if own_group:
            os.setpgid(0, 0)
        die_with(self.agent)
        for descriptor, own in zip(self._ranks_ends[:2], (1, 2), strict=True):
            os.dup2(descriptor, own)
            os.close(descriptor)
        faulthandler.register(STACKS, file=self._ranks_ends[2], all_threads=True)
        faulthandler.enable(file=2)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a pipe would make it wait for 8 KiB
        return Status(self._ranks_control, self.page)

    def tell_stop(self) -> None:
        """Tell the rank that the user stops the job."""
        with suppress(OSError):  # it has gone
            self.control.send(STOP)

    def release(self) -> None:
        """Tell a rank that waits for the other ranks' end in a job that is stopped that they have ended."""
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
