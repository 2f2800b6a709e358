"""The log lines of one stream, each with its time, its level and its text."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from unilaunch.errors import InputError
from unilaunch.look.logs.layouts import Stream
from unilaunch.overriding import override
from unilaunch.record import Record

#: A log line of unilaunch.folder.log: "04:32:20.123 node0:3 INFO    ready".
_RECORD = re.compile(
    r"(?P<clock>[0-2]\d:[0-5]\d:[0-5]\d\.\d{3}) (?P<host>\S+):\d+ (?P<level>[A-Z]+) +(?P<text>.*)", re.ASCII | re.DOTALL
)
#: An entry of `times`: seconds since 1970, and the sizes of stdout and stderr.
_ENTRY = re.compile(rb"(\d{1,10}(?:\.\d+)?) (\d{1,18}) (\d{1,18})\n")
_DAY = 86400.0
_LONGEST = 1 << 20  # bytes; a longer line is shown in pieces
_DELAY = 60.0  # seconds from a record to its file at most; if they differ by more, the record has another clock
_SET_BACK = 3700.0  # seconds by which a clock may be set back in the middle of a run


class LogLine(Record):
    """A line that a rank wrote: a log record of unilaunch's, or any other text.

    Attributes:
        time: When, in seconds since 1970. If that is unknown, when the rank began; if that is unknown too, 0.
        rank: Which rank.
        host: Its host; "" if unknown.
        stream: "stdout" or "stderr".
        level: The record's level. Other text has that of the record before it, or INFO.
        text: Of a record without its time, its host and its level.
        number: The line's number in its stream, from 1, if its time is unknown; else 0.
    """

    time: float
    rank: int
    host: str
    stream: str
    level: str
    text: str
    number: int = 0

    @override
    def __str__(self) -> str:
        return self.text


class Reader:
    """Reads a stream from where it stopped the last time.

    Raises:
        InputError: The file cannot be read.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.file = _open(stream.path)
        self.sizes = _Sizes(stream.times, 2 if stream.name == "stdout" else 3)
        self.position = 0
        self.number = 0
        self.time = stream.began
        self.is_dated = False
        self.level = "INFO"
        self.has_caught_up = False

    def lines(self, *, whole: bool = True) -> Iterator[LogLine]:
        """Return the new log lines.

        Args:
            whole: Return also a last line without an end: the rank will write no more.
        """
        self.sizes.open()
        while line := self.file.readline(_LONGEST):
            if not line.endswith(b"\n") and len(line) < _LONGEST and not whole:
                self.file.seek(self.position)
                break
            self.position += len(line)
            yield self._line(line.rstrip(b"\r\n").rpartition(b"\r")[2].decode(errors="replace"))
        self.has_caught_up = True

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        self.sizes.close()

    def _line(self, text: str) -> LogLine:
        moment, host = self._written(), self.stream.host
        if self.stream.name == "stderr" and (found := _RECORD.match(text)):
            host, self.level, text = found["host"], found["level"], found["text"]
            moment = self._of_day(found["clock"], moment)
        if moment is not None:
            self.time, self.is_dated = max(self.time, moment), True
        self.number += 1
        number = 0 if self.is_dated else self.number
        return LogLine(self.time, self.stream.rank, host, self.stream.name, self.level, text, number)

    def _written(self) -> float | None:
        """Return when the file had grown to the current position, if that is known."""
        moment = self.sizes.when(self.position)
        if moment is None and self.has_caught_up:  # what was not there at the last read is as new as the file
            return os.fstat(self.file.fileno()).st_mtime
        return moment

    def _of_day(self, clock: str, written: float | None) -> float:
        """Return a time of day as a moment.

        Args:
            clock: "04:32:20.123", on the rank's host.
            written: When the record came into its file, if that is known: it was made at most half a day before.
                Otherwise it was made after the record before it; a first record is no older than the file.
        """
        if written is not None:
            earliest = written - _DAY / 2
        elif self.time:
            earliest = self.time - _SET_BACK
        else:
            earliest = os.fstat(self.file.fileno()).st_mtime - _DAY + _DELAY
        seconds = int(clock[:2]) * 3600 + int(clock[3:5]) * 60 + float(clock[6:])
        moment = earliest + (seconds - _seconds_of_day(earliest)) % _DAY
        return moment if written is None or abs(moment - written) < _DELAY else written


class _Sizes:
    """The file `times`, read along with a stream: when the stream's file had which size."""

    def __init__(self, path: Path | None, column: int) -> None:
        self.path = path
        self.column = column
        self.file: IO[bytes] | None = None
        self.moment: float | None = None
        self.size = 0

    def open(self) -> None:
        """Open the file, if it exists by now."""
        if self.path and not self.file and self.path.exists():
            with suppress(FileNotFoundError):
                self.file = _open(self.path)

    def close(self) -> None:
        """Close the file."""
        if self.file:
            self.file.close()

    def when(self, size: int) -> float | None:
        """Return when the stream's file had *size* bytes at the latest; None if that is not known (yet)."""
        while self.size < size:
            entry = self.file.readline(_LONGEST) if self.file else b""
            if self.file and not entry.endswith(b"\n"):
                self.file.seek(-len(entry), os.SEEK_CUR)
            if not entry.endswith(b"\n"):
                return None
            if found := _ENTRY.fullmatch(entry):
                self.moment, self.size = float(found[1]), int(found[self.column])
        return self.moment


def _seconds_of_day(moment: float) -> float:
    local = time.localtime(moment)
    return local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + moment % 1


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:  # a new run has moved it aside since it was found
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
