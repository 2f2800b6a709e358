"""One console on which a rank's stream is shown, in whole lines among the other ranks' output."""

import time
from enum import Enum

from unilaunch.agent.console import Console

_BUSY = 1 << 16  # bytes that wait: the launcher is looked at several times
#: Bytes that a launcher reads at once (Open MPI 4 and 5): of a pipe one more.
_READ_AT_ONCE = 4095
_MOST_WAITING = 1 << 18  # bytes that wait for the launcher before the rank has to
UNFINISHED = 1.0  # seconds after which a line without an end is shown: it may be a question
_SOONEST, _LATEST = 0.0001, 0.05  # seconds until the launcher is looked at again that has not read yet
_PATIENCE = 1.0  # seconds in which the launcher takes what the agent itself says
_LOOKS = 10  # at once, at a launcher that has much to read


class Shown(Enum):
    """What the console shows of a rank: nothing, its output among other ranks' in whole lines, or only its output."""

    NOTHING = "nothing"
    LINES = "lines"
    ALL = "all"


class Display:
    """A stream on one console.

    mpirun reads 4 KiB of a rank's output at once, wherever a line ends, and shows that among the other ranks'. So it
    gets at most so many bytes, in whole lines, and the next when it has read them.

    Args:
        descriptor: Of the console.
    """

    def __init__(self, descriptor: int) -> None:
        self.console = Console(descriptor)
        self.shown = Shown.LINES
        self.waiting = bytearray()
        self.since = 0.0  # when the last of it came
        self.again = _SOONEST
        self.ended = False

    def add(self, data: bytes) -> None:
        """Take the next piece of the stream, and show what can be shown now; b"" at the stream's end."""
        if self.shown is not Shown.NOTHING:
            self.waiting += data
            self.since = time.monotonic()
        self.ended = not data
        self.show()

    @property
    def is_full(self) -> bool:
        """So much waits for the launcher that the rank is to wait too."""
        return len(self.waiting) > _MOST_WAITING

    def show(self) -> None:
        """Show what can be shown now."""
        try:
            while piece := self._next():
                if self.shown is Shown.LINES and not self._is_read():
                    self.again = min(2 * self.again, _LATEST)
                    return
                del self.waiting[: self.console.write(piece)]
                self.again = _SOONEST
        except BlockingIOError:
            self.again = min(2 * self.again, _LATEST)
        except OSError:  # nobody reads it any more
            self.shown = Shown.NOTHING
            self.waiting.clear()

    @property
    def backlog(self) -> bool:
        """Something that could be shown waits until the launcher has read."""
        return bool(self._next())

    def _next(self) -> bytes:
        """Return what to write next: whole lines, as many as are read at once."""
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
        """Look whether the launcher has read; if much waits, several times."""
        for _ in range(_LOOKS if len(self.waiting) > _BUSY else 1):
            if self.console.is_read():
                return True
            time.sleep(_SOONEST)
        return False

    def say(self, text: str) -> None:
        """Write lines of the agent's own, whatever is shown of the rank; wait a little for a launcher that is late."""
        data, until = text.encode(errors="backslashreplace"), time.monotonic() + _PATIENCE
        while data and time.monotonic() < until:
            try:
                data = data[self.console.write(data) :]
            except BlockingIOError:
                time.sleep(_LATEST)
            except OSError:  # it has gone with the launcher
                return

    def close(self) -> None:
        """Close what is our own of the console."""
        self.console.close()
