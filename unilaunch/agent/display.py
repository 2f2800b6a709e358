"""Show the output streams of ranks on one console, in whole lines."""

import fcntl
import os
import re
import select
import socket
import stat
import struct
import termios
import time
from contextlib import suppress

from unilaunch.monitor.messages import Shown

_LINE_ENDS = re.compile(rb"(\n|\r(?!\n))")
_BUSY = 1 << 16  # waiting bytes from which on the launcher is checked several times in a row
#: Bytes that a launcher reads at once (Open MPI 4 and 5); from a pipe it reads one more.
_READ_AT_ONCE = 4095
_MOST_WAITING = 1 << 18  # bytes that may wait for the launcher before the rank has to wait
UNFINISHED = 1.0  # seconds after which an unfinished line is shown: it may be a prompt
_SOONEST, _LATEST = 0.0001, 0.05  # seconds between two checks of a launcher that has not read yet
_PATIENCE = 1.0  # seconds that the agent waits for the launcher to read the agent's own lines
_LOOKS = 10  # checks in a row, if the launcher has much to read
_SPACE = 0.0005  # seconds that the launcher gets to read from a terminal


class Display:
    """A stream on one console.

    mpirun reads 4 KiB of a rank's output at once, even if a line does not end there, and shows it between the output of
    other ranks. So each write has at most 4 KiB of whole lines, and waits until mpirun has read the previous one.

    Args:
        descriptor: The console's open file: the launcher's pipe or terminal, or a file. Only writing to a file may
            block. The caller closes it, and may do so at once.
        paced: Whether a launcher reads the console, and shows other ranks' output between what it reads.
    """

    def __init__(self, descriptor: int, *, paced: bool = True) -> None:
        self.paced = paced
        mode = os.fstat(descriptor).st_mode
        self.is_pipe, self.is_terminal = stat.S_ISFIFO(mode), os.isatty(descriptor)
        self.own, self.socket = -1, None
        if self.is_pipe or self.is_terminal:
            # Open it again: non-blocking mode set on the shared open file would also hold for the user's shell.
            with suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self.own = os.open(f"/proc/self/fd/{descriptor}", flags)
        if self.own < 0:
            self.own = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
        if stat.S_ISSOCK(mode):
            self.socket = socket.socket(fileno=self.own)
        self.wrote_at = 0.0
        self.shown = Shown.LINES
        self.label = b""
        self.begins_line = True  # the next piece begins a line
        self.waiting = bytearray()
        self.since = 0.0  # when the last piece arrived
        self.again = _SOONEST
        self.ended = False
        self.in_line = False  # the last line that was shown has no end yet

    def add(self, data: bytes) -> None:
        """Add the next piece of the stream, and show what can be shown now; b"" marks the end of the stream."""
        if self.shown is not Shown.NOTHING:
            self.waiting += self._labelled(data) if self.label else data
            self.since = time.monotonic()
        self.ended = not data
        self.show()

    def _labelled(self, data: bytes) -> bytes:
        """Return a piece of the stream with the label before each line that begins in it."""
        pieces = _LINE_ENDS.split(data)  # a line, its end, a line, its end, ..., what is left
        for at in range(0, len(pieces), 2):
            last = at == len(pieces) - 1
            if self.begins_line and (pieces[at] or not last):
                pieces[at] = self.label + pieces[at]
            self.begins_line = not last or (self.begins_line and not pieces[at])
        return b"".join(pieces)

    @property
    def is_full(self) -> bool:
        """Whether so many bytes wait for the launcher that the rank must wait too."""
        return len(self.waiting) > _MOST_WAITING

    def show(self) -> None:
        """Show what can be shown now."""
        try:
            while piece := self._next():
                if self.paced and self.shown is not Shown.ALL and not self._is_read():
                    self.again = min(2 * self.again, _LATEST)
                    return
                written = self._write(piece)
                self.in_line = self.waiting[written - 1] not in b"\r\n"
                del self.waiting[:written]
                self.again = _SOONEST
        except BlockingIOError:
            self.again = min(2 * self.again, _LATEST)
        except OSError:  # the reader has closed its end
            self.shown = Shown.NOTHING
            self.waiting.clear()

    @property
    def backlog(self) -> bool:
        """Whether output that could be shown waits until the launcher has read."""
        return bool(self._next())

    def _next(self) -> bytes:
        """Return the bytes to write next: whole lines, as many as the launcher reads at once."""
        late = time.monotonic() - self.since > UNFINISHED
        unfinished = late or self.ended or self.shown is Shown.ALL
        end = min(len(self.waiting), _READ_AT_ONCE)
        line_end = 1 + max(self.waiting.rfind(b"\n", 0, end), self.waiting.rfind(b"\r", 0, end))
        if line_end:
            end = line_end
        elif not unfinished and len(self.waiting) < _READ_AT_ONCE:
            end = 0
        return bytes(self.waiting[:end])

    def _is_read(self) -> bool:
        """Return whether the launcher has read; check several times if much output waits."""
        for _ in range(_LOOKS if len(self.waiting) > _BUSY else 1):
            if self._has_read():
                return True
            time.sleep(_SOONEST)
        return False

    def _has_read(self) -> bool:
        """Return whether the launcher has read what was written: only then does it read the next piece separately.

        A terminal does not show that (Open MPI gives a rank a terminal as its standard output), so a short time passes.
        """
        if self.is_terminal:
            return time.monotonic() - self.wrote_at > _SPACE
        if not self.is_pipe:
            return True
        queued = struct.unpack("i", fcntl.ioctl(self.own, termios.FIONREAD, b"0123"))[0]
        watching = select.poll()
        watching.register(self.own, 0)
        return not queued or bool(watching.poll(0))  # the reader has closed its end: the next write raises an error

    def _write(self, piece: bytes) -> int:
        """Write as many bytes as there is room for, and return their number."""
        self.wrote_at = time.monotonic()
        if self.socket:
            return self.socket.send(piece, socket.MSG_DONTWAIT)
        return os.write(self.own, piece)

    def say(self, text: str) -> None:
        """Write lines of the agent, even if the rank's output is hidden; wait a short time for a slow launcher.

        The rank's last line is ended before, so that the agent's begins a line.
        """
        data, until = ("\n" * self.in_line + text).encode(errors="backslashreplace"), time.monotonic() + _PATIENCE
        self.in_line = False
        while data and time.monotonic() < until:
            try:
                data = data[self._write(data) :]
            except BlockingIOError:
                time.sleep(_LATEST)
            except OSError:  # the console was closed when the launcher exited
                return

    def close(self) -> None:
        """Close the file that this object opened."""
        if self.socket:
            self.socket.close()
        else:
            os.close(self.own)
