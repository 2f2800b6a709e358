"""A rank's standard output and error on their way through its agent: into its folder, and to the launcher's console."""

import os
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from unilaunch.agent.display import UNFINISHED, Display, Shown
from unilaunch.agent.hidden_output import HiddenOutput
from unilaunch.output.files import last_lines, open_file

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_PIECE = 1 << 16
_PAUSE = 0.02  # least seconds between two entries of `times`


class Stream:
    """One of a rank's two streams: kept in a file, and shown on the launcher's consoles.

    Args:
        source: The reading end of the rank's pipe.
        consoles: Where it is shown; -1 for nowhere.
    """

    def __init__(self, source: int, *consoles: int) -> None:
        self.source = source
        self.displays = [Display(console) for console in consoles if console >= 0]
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
        self.keep(held)

    def move(self) -> bool:
        """Take a piece of output, keep it and show it; False at the end of the stream."""
        data = os.read(self.source, _PIECE)
        self.keep(data)
        for display in self.displays:
            display.add(data)
        return bool(data)

    def show_as(self, shown: Shown) -> None:
        """Choose what the consoles show from now on; a console that has gone stays as it is."""
        for display in self.displays:
            if display.shown is not Shown.NOTHING:
                display.shown = shown

    def show(self) -> None:
        """Show what waits, as far as it can be shown now."""
        for display in self.displays:
            if display.waiting:
                display.show()

    @property
    def is_full(self) -> bool:
        """So much waits for the launcher that the rank is to wait too."""
        return any(display.is_full for display in self.displays)

    @property
    def is_shown(self) -> bool:
        """Nothing waits for the launcher."""
        return not any(display.waiting for display in self.displays)

    @property
    def again(self) -> float:
        """Seconds until `show` is to be called again, at the latest."""
        return min((display.again for display in self.displays if display.backlog), default=UNFINISHED)

    def size(self) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self.file).st_size if self.file >= 0 else 0

    def say(self, text: str) -> None:
        """Write a line of the agent's own to the consoles, whatever is shown of the rank."""
        for display in self.displays:
            display.say(text)

    def keep(self, data: bytes) -> None:
        """Put *data* into the file, or hold it until there is one."""
        if self.file < 0 and not self.lost:
            self.held += data
            return
        try:
            while data and not self.lost:
                data = data[os.write(self.file, data) :]
        except OSError as error:  # the disk is full, say: the rank works on, and its output is still shown
            self.lost = error.strerror or str(error)

    def close(self) -> None:
        """Close its file and what is our own of its consoles."""
        if self.file >= 0:
            os.close(self.file)
        for display in self.displays:
            display.close()
        self.file, self.displays = -1, []


class Output:
    """Both streams, and the folder in which they are kept.

    Args:
        sources: The reading ends of the rank's pipes.
        consoles: Where they are shown.
        hidden: What the launcher does not show; its console is closed here.

    Attributes:
        streams: Standard output and standard error.
        flowing: Those that have not come to their end.
        folder: The rank's folder, once the rank has told it.
        last_words: What the log says of the rank's failure, and no console.
    """

    def __init__(self, sources: Sequence[int], consoles: Sequence[int], hidden: HiddenOutput) -> None:
        self.streams = [Stream(*ends) for ends in zip(sources, consoles, hidden.console, strict=True)]
        self.hidden_files = hidden.files
        for descriptor in hidden.console:
            if descriptor >= 0:
                os.close(descriptor)
        self.flowing = list(self.streams)
        self.folder: Path | None = None
        self.clock: _Clock | None = None
        self.last_words = ""

    def open(self, folder: Path) -> None:
        """Keep the output in *folder*."""
        self.folder = folder
        for stream, name in zip(self.streams, ("stdout", "stderr"), strict=True):
            stream.open(folder / name)
        self.clock = _Clock(folder / "times", self.streams)

    def show(self, shown: Shown) -> None:
        """Show the output on the console as well, or do not."""
        for stream in self.streams:
            stream.show_as(shown)

    def move(self, stream: Stream) -> bool:
        """Take a piece of output; False at the end of the stream."""
        if stream.move():
            return True
        self.flowing.remove(stream)
        return False

    def tick(self, *, last: bool = False) -> None:
        """Show what waits for the launcher; write down the time and the files' sizes, if they have grown."""
        for stream in self.streams:
            stream.show()
        if self.clock:
            self.clock.tick(last=last)

    @property
    def again(self) -> float:
        """Seconds until `tick` is to be called again, at the latest."""
        return min(stream.again for stream in self.streams)

    @property
    def is_shown(self) -> bool:
        """Nothing waits for the launcher."""
        return all(stream.is_shown for stream in self.streams)

    def keep_last_words(self, text: str) -> None:
        """Put *text* into the log, after what the rank has written until now; the consoles do not get it."""
        stream, self.last_words = self.streams[1], text
        waiting = select.poll()
        waiting.register(stream.source, select.POLLIN)
        if waiting.poll(0):
            stream.move()
        stream.keep(text.encode(errors="backslashreplace"))

    def say_hidden_files(self) -> None:
        """Say where the launcher's own files are, if it shows no output itself; not in those files."""
        if self.hidden_files and self.streams[1].displays:
            self.streams[1].displays[-1].say(
                f"unilaunch: mpirun's own copy of the output, which it does not show: {self.hidden_files}\n"
            )

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
