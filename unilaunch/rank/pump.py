"""A rank's standard output and error on their way through its guard: into its folder, and to the console."""

import os
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from unilaunch.output.files import open_file

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_PIECE = 1 << 16
_TAIL = 8192  # bytes of a log's end that are looked at for its last lines
_PAUSE = 0.02  # least seconds between two entries of `times`


class Stream:
    """One of a rank's two streams.

    Args:
        source: The reading end of the rank's pipe.
        console: Where it is shown.
    """

    def __init__(self, source: int, console: int) -> None:
        self.source = source
        self.console = console
        self.shown = True
        self.file = -1
        self.held = b""
        self.lost = ""

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
        if self.shown:
            self._show(data)
        return bool(data)

    def size(self) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self.file).st_size if self.file >= 0 else 0

    def _keep(self, data: bytes) -> None:
        try:
            while data and not self.lost:
                data = data[os.write(self.file, data) :]
        except OSError as error:  # the disk is full, say: the rank works on, and its output is still shown
            self.lost = error.strerror or str(error)

    def _show(self, data: bytes) -> None:
        try:
            while data:
                try:
                    data = data[os.write(self.console, data) :]
                except BlockingIOError:
                    select.select([], [self.console], [])
        except OSError:  # nobody reads it any more
            self.shown = False


class Output:
    """Both streams, and the folder in which they are kept.

    Attributes:
        streams: Standard output and standard error.
        flowing: Those that have not come to their end.
        folder: The rank's folder, once the rank has told it.
    """

    def __init__(self, stdout: int, stderr: int) -> None:
        self.streams = [Stream(stdout, 1), Stream(stderr, 2)]
        self.flowing = list(self.streams)
        self.folder: Path | None = None
        self.clock: _Clock | None = None

    def open(self, folder: Path) -> None:
        """Keep the output in *folder*."""
        self.folder = folder
        for stream, name in zip(self.streams, ("stdout", "stderr"), strict=True):
            stream.open(folder / name)
        self.clock = _Clock(folder / "times", self.streams)

    def show(self, *, shown: bool) -> None:
        """Show the output on the console as well, or do not."""
        for stream in self.streams:
            stream.shown = stream.shown and shown

    def move(self, stream: Stream) -> bool:
        """Take a piece of output; False at the end of the stream."""
        if stream.move():
            return True
        self.flowing.remove(stream)
        return False

    def tick(self, *, last: bool = False) -> None:
        """Write down the time and the files' sizes, if they have grown."""
        if self.clock:
            self.clock.tick(last=last)

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


def last_lines(path: Path, number: int) -> list[str]:
    """Return the last *number* lines of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            return file.read().decode(errors="replace").splitlines()[-number:]
    except OSError:
        return []
