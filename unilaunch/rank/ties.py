"""What ties a rank and its guard together: the output's pipes, the line of messages, a page of memory, and one end."""

import faulthandler
import os
import signal
import socket
import sys
from contextlib import suppress

from unilaunch.rank.page import Page
from unilaunch.rank.processes import die_with_parent
from unilaunch.rank.report import STOP, Report

#: At this signal a rank writes its Python stacks; high, since programs use SIGUSR1 and SIGUSR2 themselves.
STACKS = signal.SIGRTMAX - 1


class Ties:
    """Made before the two part; each keeps its own ends."""

    def __init__(self) -> None:
        self.page = Page()
        self.control, self.ranks_control = socket.socketpair()
        pipes = [os.pipe() for _ in range(3)]
        self.stdout, self.stderr, self.stacks = (reading for reading, _ in pipes)
        self.ranks_ends = [writing for _, writing in pipes]
        # A terminal's Ctrl-C and its input are for one process group only.
        self.own_group = not os.isatty(0)

    def be_rank(self) -> Report:
        """Be the rank: its output goes to the guard, and it dies with it."""
        if self.own_group:
            os.setpgid(0, 0)
        die_with_parent()
        self.control.close()
        for descriptor in (self.stdout, self.stderr, self.stacks):
            os.close(descriptor)
        for descriptor, own in zip(self.ranks_ends[:2], (1, 2), strict=True):
            os.dup2(descriptor, own)
            os.close(descriptor)
        faulthandler.register(STACKS, file=self.ranks_ends[2], all_threads=True)
        faulthandler.enable(file=2)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a pipe would make it wait for 8 KiB
        return Report(self.ranks_control, self.page)

    def be_guard(self) -> "Ties":
        """Be the guard."""
        self.ranks_control.close()
        for descriptor in self.ranks_ends:
            os.close(descriptor)
        return self

    def tell_stop(self) -> None:
        """Tell the rank that the user stops the job."""
        with suppress(OSError):  # it has gone
            self.control.send(STOP)

    def release(self) -> None:
        """Tell a rank that waits for the other ranks' end in a job that is stopped that they have ended."""
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
