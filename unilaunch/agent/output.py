"""A rank's standard output and error on their way through its agent: into its folder, and to the launcher's console."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

from unilaunch.agent.console import Console
from unilaunch.output.files import last_lines, open_file

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_PIECE = 1 << 16
_PAUSE = 0.02  # least seconds between two entries of `times`
#: Bytes that a launcher reads at once (Open MPI 4 and 5): of a pipe one more.
_READ_AT_ONCE = 4095
_MOST_WAITING = 1 << 18  # bytes that wait for the launcher before the rank has to
_UNFINISHED = 1.0  # seconds after which a line without an end is shown: it may be a question
_SOONEST, _LATEST = 0.0001, 0.05  # seconds until the launcher is looked at again that has not read yet
_LOOKS = 10  # at once, at a launcher that has much to read


class Shown(Enum):
    """What the console shows of a rank: nothing, its output among other ranks' in whole lines, or only its output."""

    NOTHING = "nothing"
    LINES = "lines"
    ALL = "all"


class Stream:
    """One of a rank's two streams.

    mpirun reads 4 KiB of a rank's output at once, wherever a line ends, and shows that among the other ranks'. So it
    gets at most so many bytes, in whole lines, and the next when it has read them.

    Args:
        source: The reading end of the rank's pipe.
        console: Where it is shown; -1 for nowhere.
    """

    def __init__(self, source: int, console: int) -> None:
        self.source = source
        self.console = Console(console) if console >= 0 else None
        self.shown = Shown.LINES if self.console else Shown.NOTHING
        self.file = -1
        self.held = b""
        self.lost = ""
        self.waiting = bytearray()  # for the console
        self.since = 0.0  # when the last of it came
        self.again = _SOONEST
        self.ended = False

    def open(self, path: Path) -> None:
        """Keep the output in *path* from now on, and what has come so far."""
        try:
            self.file = open_file(path, _APPEND)
        except OSError as error:
            self.lost = error.strerror or str(error)
        held, self.held = self.held, b""
        self._keep(held)

    def move(self) -> bool:
        """Take a piece of output, keep it and show it; False at the end of the stream."""
        data = os.read(self.source, _PIECE)
        if self.file < 0 and not self.lost:
            self.held += data
        else:
            self._keep(data)
        if self.shown is not Shown.NOTHING:
            self.waiting += data
            self.since = time.monotonic()
        self.ended = not data
        self.show()
        return bool(data)

    @property
    def is_full(self) -> bool:
        """So much waits for the launcher that the rank is to wait too."""
        return len(self.waiting) > _MOST_WAITING

    def size(self) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self.file).st_size if self.file >= 0 else 0

    def show(self) -> None:
        """Show what can be shown now."""
        try:
            while self.console and (piece := self._next()):
                if self.shown is Shown.LINES and not self._is_read(self.console):
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
        late = time.monotonic() - self.since > _UNFINISHED
        unfinished = late or self.ended or self.shown is Shown.ALL
        end = min(len(self.waiting), _READ_AT_ONCE)
        line_end = 1 + max(self.waiting.rfind(b"\n", 0, end), self.waiting.rfind(b"\r", 0, end))
        if line_end:
            end = line_end
        elif not unfinished and len(self.waiting) < _READ_AT_ONCE:
            end = 0
        return bytes(self.waiting[:end])

    def _is_read(self, console: Console) -> bool:
        """Look whether the launcher has read; if much waits, several times."""
        for _ in range(_LOOKS if len(self.waiting) > _PIECE else 1):
            if console.is_read():
                return True
            time.sleep(_SOONEST)
        return False

    def say(self, text: str) -> None:
        """Write a line of the agent's own to the console, whatever is shown of the rank."""
        with suppress(OSError):  # it may have gone with the launcher
            if self.console:
                self.console.write(text.encode())

    def _keep(self, data: bytes) -> None:
        try:
            while data and not self.lost:
                data = data[os.write(self.file, data) :]
        except OSError as error:  # the disk is full, say: the rank works on, and its output is still shown
            self.lost = error.strerror or str(error)

    def close(self) -> None:
        """Close its file and what is our own of its console."""
        if self.file >= 0:
            os.close(self.file)
        if self.console:
            self.console.close()
        self.file, self.console, self.shown = -1, None, Shown.NOTHING


class Output:
    """Both streams, and the folder in which they are kept.

    Attributes:
        streams: Standard output and standard error.
        flowing: Those that have not come to their end.
        folder: The rank's folder, once the rank has told it.
    """

    def __init__(self, sources: Sequence[int], consoles: Sequence[int]) -> None:
        self.streams = [Stream(source, console) for source, console in zip(sources, consoles, strict=True)]
        self.flowing = list(self.streams)
        self.folder: Path | None = None
        self.clock: _Clock | None = None

    def open(self, folder: Path) -> None:
        """Keep the output in *folder*."""
        self.folder = folder
        for stream, name in zip(self.streams, ("stdout", "stderr"), strict=True):
            stream.open(folder / name)
        self.clock = _Clock(folder / "times", self.streams)

    def show(self, shown: Shown) -> None:
        """Show the output on the console as well, or do not."""
        for stream in self.streams:
            if stream.shown is not Shown.NOTHING:
                stream.shown = shown

    def move(self, stream: Stream) -> bool:
        """Take a piece of output; False at the end of the stream."""
        if stream.move():
            return True
        self.flowing.remove(stream)
        return False

    def tick(self, *, last: bool = False) -> None:
        """Show what waits for the launcher; write down the time and the files' sizes, if they have grown."""
        for stream in self.streams:
            if stream.waiting:
                stream.show()
        if self.clock:
            self.clock.tick(last=last)

    @property
    def again(self) -> float:
        """Seconds until `tick` is to be called again, at the latest."""
        return min((stream.again for stream in self.streams if stream.backlog), default=_UNFINISHED)

    @property
    def is_shown(self) -> bool:
        """Nothing waits for the launcher."""
        return not any(stream.waiting for stream in self.streams)

    def close(self) -> None:
        """Close everything but the rank's pipes."""
        for stream in self.streams:
            stream.close()
        if self.clock:
            self.clock.close()

    def sizes(self) -> list[int]:
        """Return the files' sizes in bytes."""
        return [stream.size() for stream in self.streams]

    def last_lines(self, number: int) -> list[str]:
        """Return the last lines of the standard error, which is the log too; of a rank without one, of its output."""
        if not self.folder:
            return []
        return last_lines(self.folder / "stderr", number) or last_lines(self.folder / "stdout", number)


class _Clock:
    """`times`: when the two files had which sizes; from it `unilaunch logs` tells a line's time."""

    def __init__(self, path: Path, streams: Sequence[Stream]) -> None:
        self.file = -1
        with suppress(OSError):
            self.file = open_file(path, _APPEND)
        self.streams = streams
        self.written = 0.0
        self.sizes = [0, 0]

    def tick(self, *, last: bool = False) -> None:
        """Write an entry if there is more output than at the last one, and some time has gone by."""
        now = time.time()
        if now - self.written < _PAUSE and not last:
            return
        sizes = [stream.size() for stream in self.streams]
        if sizes != self.sizes:
            self.written, self.sizes = now, sizes
            with suppress(OSError):
                os.write(self.file, f"{now:.3f} {sizes[0]} {sizes[1]}\n".encode())

    def close(self) -> None:
        """Close its file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
