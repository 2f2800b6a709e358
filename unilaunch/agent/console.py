"""Where a rank's output is shown: the launcher's pipe or terminal, or a file."""

import fcntl
import os
import select
import stat
import struct
import termios
import time
from contextlib import suppress

_SPACE = 0.0005  # seconds for the launcher to read from a terminal


class Console:
    """Where a stream is shown: a launcher's pipe or terminal, or a file. Writing never waits, but to a file.

    Args:
        descriptor: It is another's to close, also at once.
    """

    def __init__(self, descriptor: int) -> None:
        mode = os.fstat(descriptor).st_mode
        self.is_pipe, self.is_terminal = stat.S_ISFIFO(mode), os.isatty(descriptor)
        self.own = -1
        if self.is_pipe or self.is_terminal:
            # Another open file of the same: a shell is not to find that its own does not block.
            with suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self.own = os.open(f"/proc/self/fd/{descriptor}", flags)
        if self.own < 0:
            self.own = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
        self.wrote_at = 0.0

    def is_read(self) -> bool:
        """Return whether the launcher has read what was written: then it reads the next piece alone.

        Of a terminal (Open MPI gives a rank one as its standard output) nobody can tell; it is given some time.
        """
        if self.is_terminal:
            return time.monotonic() - self.wrote_at > _SPACE
        if not self.is_pipe:
            return True
        queued = struct.unpack("i", fcntl.ioctl(self.own, termios.FIONREAD, b"0123"))[0]
        return not queued or self._is_broken()

    def _is_broken(self) -> bool:
        """Return whether nobody reads any more: to write then says so."""
        watching = select.poll()
        watching.register(self.own, 0)
        return bool(watching.poll(0))

    def write(self, piece: bytes) -> int:
        """Write what there is room for, and return how much that was.

        Raises:
            OSError: There is none now (BlockingIOError), or nobody reads it any more.
        """
        self.wrote_at = time.monotonic()
        return os.write(self.own, piece)

    def close(self) -> None:
        """Close what is our own of it."""
        os.close(self.own)
