"""The connections between a rank and its agent: pipes for output and stacks, the status channel and the status page."""

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

#: The signal at which a rank writes its Python stacks. It is a real-time signal: programs use SIGUSR1 and SIGUSR2.
STACKS = signal.SIGRTMAX - 1


class Channel:
    """The pipes and sockets between agent and rank, made before the fork. Each process then closes the other's ends."""

    def __init__(self) -> None:
        self.agent = os.getpid()
        self.page = StatusPage()
        self.control, self._ranks_control = socket.socketpair()
        pipes = [os.pipe() for _ in range(3)]
        self.stdout, self.stderr, self.stacks = (reading for reading, _ in pipes)
        self._ranks_ends = [writing for _, writing in pipes]

    def be_agent(self) -> None:
        """Close the rank's ends, in the agent."""
        self._ranks_control.close()
        for descriptor in self._ranks_ends:
            os.close(descriptor)

    def close(self) -> None:
        """Close the agent's ends."""
        self.control.close()
        for descriptor in (self.stdout, self.stderr, self.stacks):
            os.close(descriptor)

    def move_ranks_ends(self, above: int) -> None:
        """Move the rank's ends to descriptors from *above* on: the launcher's files need the lower numbers."""
        moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, above) for end in self._ranks_ends]
        control = fcntl.fcntl(self._ranks_control.fileno(), fcntl.F_DUPFD_CLOEXEC, above)
        self._ranks_control.close()
        for end in self._ranks_ends:
            os.close(end)
        self._ranks_control, self._ranks_ends = socket.socket(fileno=control), moved

    def be_rank(self, *, own_group: bool) -> Status:
        """Connect this process, the rank, once the agent's ends are closed.

        Its output goes to the agent, and the kernel kills it when the agent exits.

        Args:
            own_group: Whether the rank gets its own process group; on a terminal one group gets Ctrl-C and input.
        """
        if own_group:
            os.setpgid(0, 0)
        die_with(self.agent)
        for descriptor, own in zip(self._ranks_ends[:2], (1, 2), strict=True):
            os.dup2(descriptor, own)
            os.close(descriptor)
        faulthandler.register(STACKS, file=self._ranks_ends[2], all_threads=True)
        faulthandler.enable(file=self._ranks_ends[2])  # its agent leaves out unilaunch's own frames
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # on a pipe Python would buffer 8 KiB
        return Status(self._ranks_control, self.page)

    def tell_stop(self) -> None:
        """Tell the rank that the user stops the job."""
        with suppress(OSError):  # the rank has exited
            self.control.send(STOP)

    def release(self) -> None:
        """Tell a rank of a stopped job, which waits for the other ranks, that they have ended."""
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
