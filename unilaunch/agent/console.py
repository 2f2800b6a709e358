"""The console on which a rank's output is shown: the launcher's pipe or terminal, or a file."""

import fcntl
import os
import select
import stat
import struct
import termios
import time
from contextlib import suppress

_SPACE = 0.0005  # seconds that the launcher gets to read from a terminal


class Console:
    """Where a stream is shown: a launcher's pipe or terminal, or a file. Only writing to a file may block.

    Args:
        descriptor: An open file. The caller closes it, and may do so at once.
    """

    def __init__(self, descriptor: int) -> None:
        mode = os.fstat(descriptor).st_mode
        self.is_pipe, self.is_terminal = stat.S_ISFIFO(mode), os.isatty(descriptor)
        self.own = -1
        if self.is_pipe or self.is_terminal:
            # Open it again: non-blocking mode set on the shared open file would also hold for the user's shell.
            with suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self.own = os.open(f"/proc/self/fd/{descriptor}", flags)
        if self.own < 0:
            self.own = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
        self.wrote_at = 0.0

    def is_read(self) -> bool:
        """Return whether the launcher has read what was written: only then does it read the next piece separately.

        A terminal does not show that (Open MPI gives a rank a terminal as its standard output), so a short time passes.
        """
        if self.is_terminal:
            return time.monotonic() - self.wrote_at > _SPACE
        if not self.is_pipe:
            return True
        queued = struct.unpack("i", fcntl.ioctl(self.own, termios.FIONREAD, b"0123"))[0]
        return not queued or self._is_broken()

    def _is_broken(self) -> bool:
        """Return whether the reader has closed its end: the next write then raises an error."""
        watching = select.poll()
        watching.register(self.own, 0)
        return bool(watching.poll(0))

    def write(self, piece: bytes) -> int:
        """Write as many bytes as there is room for, and return their number.

        Raises:
            OSError: There is no room now (BlockingIOError), or the reader has closed its end.
        """
        self.wrote_at = time.monotonic()
        return os.write(self.own, piece)

    def close(self) -> None:
        """Close the file that this object opened."""
        os.close(self.own)
