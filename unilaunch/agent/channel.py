"""The connections between a rank and its agent: pipes for output and stacks, the status channel and the status page."""

import faulthandler
import os
import signal
import socket
import sys
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from selectors import EVENT_WRITE

from unilaunch.agent.processes import Loop, die_with, fork, no_more
from unilaunch.rank.status import STOP, Status, StatusPage
from unilaunch.spec.variables import NO_WINDOWS, Windows

#: The signal at which a rank writes its Python stacks. It is a real-time signal: programs use SIGUSR1 and SIGUSR2.
STACKS = signal.SIGRTMAX - 1


class Channel:
    """The pipes and sockets between agent and rank, made before the fork. Each process then closes the other's ends.

    Args:
        windows: Of the terminals that the rank's standard output and error are to be; None for a pipe.
        own_group: Whether the rank gets its own process group; on a terminal one group gets Ctrl-C and input.
        has_input: Whether the agent passes an input on; if not, the rank has the agent's.
    """

    def __init__(self, windows: Windows = NO_WINDOWS, *, own_group: bool = False, has_input: bool = False) -> None:
        self.agent, self.own_group = os.getpid(), own_group
        self.page = StatusPage()
        self.control, self._ranks_control = socket.socketpair()
        pipes = [*(_terminal(*window) if window else os.pipe() for window in windows), os.pipe()]
        self.stdout, self.stderr, self.stacks = (reading for reading, _ in pipes)
        self._ranks_ends = [writing for _, writing in pipes]
        self._ranks_stdin, self.stdin = os.pipe() if has_input else (-1, -1)

    def be_agent(self) -> None:
        """Close the rank's ends, in the agent."""
        self._ranks_control.close()
        for descriptor in (*self._ranks_ends, self._ranks_stdin):
            if descriptor >= 0:
                os.close(descriptor)

    def close(self) -> None:
        """Close the agent's ends, but for that of the input, which ends earlier."""
        self.control.close()
        for descriptor in (self.stdout, self.stderr, self.stacks):
            os.close(descriptor)

    def be_rank(self) -> Status:
        """Close the agent's ends, and connect this process, the rank.

        Its output goes to the agent, and the kernel kills it when the agent exits.
        """
        self.close()
        if self.own_group:
            os.setpgid(0, 0)
        die_with(self.agent)
        for descriptor, own in zip(self._ranks_ends[:2], (1, 2), strict=True):
            os.dup2(descriptor, own)
            os.close(descriptor)
        if self._ranks_stdin >= 0:
            os.close(self.stdin)
            os.dup2(self._ranks_stdin, 0)
            os.close(self._ranks_stdin)
        faulthandler.register(STACKS, file=self._ranks_ends[2], all_threads=True)
        faulthandler.enable(file=self._ranks_ends[2])  # its agent leaves out unilaunch's own frames
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # on a pipe Python would buffer 8 KiB
        return Status(self._ranks_control, self.page)

    def resize(self, windows: Sequence[Sequence[int]]) -> bool:
        """Give the terminals that the rank's two outputs are these sizes; return whether there is one."""
        terminals = [
            (descriptor, window)
            for descriptor, window in zip((self.stdout, self.stderr), windows, strict=True)
            if window and os.isatty(descriptor)
        ]
        for descriptor, (rows, columns) in terminals:
            termios.tcsetwinsize(descriptor, (rows, columns))
        return bool(terminals)

    def tell_stop(self) -> None:
        """Tell the rank that the user stops the job."""
        with suppress(OSError):  # the rank has exited
            self.control.send(STOP)

    def release(self) -> None:
        """Tell a rank of a stopped job, which waits for the other ranks, that they have ended."""
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)


def _terminal(rows: int, columns: int) -> tuple[int, int]:
    """Return the two ends of a new terminal: the one to read from, and the rank's. It changes nothing of the output.

    Where the system has none, as in some containers, they are those of a pipe.
    """
    try:
        reading, writing = os.openpty()
    except OSError:
        return os.pipe()
    state = termios.tcgetattr(writing)
    state[1] &= ~termios.OPOST  # the end of a line stays one byte in the rank's files
    termios.tcsetattr(writing, termios.TCSANOW, state)
    termios.tcsetwinsize(writing, (rows, columns))
    return reading, writing


def fork_rank(windows: Windows = NO_WINDOWS, *, own_group: bool, has_input: bool = False) -> tuple[int, Channel]:
    """Fork the process of a rank; return its process number, 0 in the rank, and the connections between the two.

    The arguments are those of `Channel`.

    Raises:
        LauncherError: The system allows no further process, or no further open file.
    """
    try:
        channel = Channel(windows, own_group=own_group, has_input=has_input)
    except OSError as error:
        raise no_more("the process of a rank", error) from None
    return fork("the process of a rank"), channel


class InputPipe:
    """A rank's input, piece by piece from `launch`: a launcher may lose a part of it, or its end.

    Args:
        descriptor: The pipe to the rank.
        loop: The agent's loop.
        request: Requests the next piece.
    """

    def __init__(self, descriptor: int, loop: Loop, request: Callable[[], None]) -> None:
        os.set_blocking(descriptor, False)  # the rank's own end stays as it is
        self._descriptor, self._loop, self._request = descriptor, loop, request
        self._rest = b""

    def begin(self, rank: int) -> None:
        """Request the first piece; the input of every rank but 0 ends here."""
        if rank:
            self.close()
        else:
            self._request()

    def take(self, piece: bytes) -> None:
        """Pass on a piece, and then request the next one; an empty piece is the end of the input."""
        if not piece:
            self.close()
        elif self._descriptor >= 0:
            self._rest = piece
            self._loop.watch(self._descriptor, self._write, EVENT_WRITE)

    def _write(self) -> bool:
        """Write as much as the pipe can take; return whether something is left."""
        try:
            self._rest = self._rest[os.write(self._descriptor, self._rest) :]
        except BlockingIOError:  # it can take less than a page
            return True
        except OSError:  # the rank has closed its input
            self.close()
            return True  # it is not watched any more
        if not self._rest:
            self._request()
        return bool(self._rest)

    def close(self) -> None:
        """End the input, also before its end."""
        if self._descriptor >= 0:
            self._loop.forget([self._descriptor])
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
