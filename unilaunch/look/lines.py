"""The log lines of a job: find the files with the ranks' output, read their lines with their times, and merge them.

The files are in our folder, in Open MPI 4's tree, or beside a folder, as Open MPI 5 writes them.
"""

import heapq
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from unilaunch.errors import InputError
from unilaunch.folder.files import read_rows
from unilaunch.overriding import override
from unilaunch.record import Record

_RANK = re.compile(r"rank\.(\d+)")
#: The folder of a job in Open MPI's tree: "1", and in that of `--output dir=` "prterun-host-1234@1".
_JOB = re.compile(r"\d+|(?P<job>prterun-.+)@\d+")
_FILE = re.compile(r"\.(?P<job>prterun-.+)@\d+\.(?P<rank>\d+)\.(?P<name>out|err)")
_NAMES = ("stdout", "stderr")
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
_PAUSE = 0.2  # seconds between two reads
_DRAIN = 0.5  # seconds in which the last output arrives, after a rank has recorded its end
_LATEST = 10.0  # the same, while an agent still works on the output
#: Control sequences of a terminal (ECMA-48): colours and cursor moves, titles and links, all others; and single control
#: characters other than a tab and the end of a line.
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_COLOUR = re.compile(r"\x1b\[[\d;:]*m")


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


def without_escapes(text: str, *, but_colours: bool = False) -> str:
    """Return *text* without control sequences: a cursor that moves would overwrite other lines.

    Args:
        text: What a rank wrote.
        but_colours: Leave those that set a colour.
    """
    if text.isprintable():
        return text
    return _ESCAPE.sub(lambda found: found[0] if but_colours and _COLOUR.fullmatch(found[0]) else "", text)


class Stream(Record):
    """One rank's standard output or standard error, in a file.

    Attributes:
        rank: Which rank's.
        name: "stdout" or "stderr".
        path: The file.
        host: Where the rank ran; "" if unknown.
        began: When it began, in seconds since 1970; 0 if unknown.
        times: The file that says when the output had which size, if this layout has one; it may be made later.
    """

    rank: int
    name: str
    path: Path
    host: str = ""
    began: float = 0.0
    times: Path | None = None


def find_streams(folder: Path) -> list[Stream]:
    """Return the streams of the job in *folder*, by rank; ours, if Open MPI kept the same output too."""
    found = [*_ours(folder)] or _newest(_of_a_tree(folder)) or _newest(_of_files_beside(folder))
    return sorted(found, key=lambda stream: (stream.rank, stream.name))


def _ours(folder: Path) -> Iterator[Stream]:
    """Return the streams in DIR/rank.N: ours, or Open MPI 4's with `DIR:nojobid`, which has no events and no times."""
    for rank_dir in folder.glob("rank.*"):
        if found := _RANK.fullmatch(rank_dir.name):
            host, began = _host_and_begin(rank_dir / "events.jsonl")
            for name in _NAMES:
                if (path := rank_dir / name).is_file():
                    yield Stream(int(found[1]), name, path, host, began, rank_dir / "times")


def _of_a_tree(folder: Path) -> Iterator[tuple[str, Stream]]:
    """Yield each stream with its job."""
    for path in folder.glob("*/rank.*/std*"):
        job, rank = _JOB.fullmatch(path.parent.parent.name), _RANK.fullmatch(path.parent.name)
        if job and rank and path.name in _NAMES:
            yield job["job"] or "", Stream(int(rank[1]), path.name, path)


def _of_files_beside(folder: Path) -> Iterator[tuple[str, Stream]]:
    """Yield each stream with its job."""
    for path in folder.parent.glob("*.prterun-*"):
        if path.name.startswith(folder.name) and (found := _FILE.fullmatch(path.name[len(folder.name) :])):
            yield found["job"], Stream(int(found["rank"]), f"std{found['name']}", path)


def _newest(found: Iterable[tuple[str, Stream]]) -> list[Stream]:
    """Return the newest job's streams: Open MPI 5 leaves the files of each run beside those of earlier ones."""
    jobs: dict[str, list[Stream]] = {}
    for job, stream in found:
        jobs.setdefault(job, []).append(stream)
    return max(jobs.values(), key=lambda streams: max(stream.path.stat().st_mtime for stream in streams), default=[])


def _host_and_begin(events: Path) -> tuple[str, float]:
    host, began = "", 0.0
    for event in read_rows(events):
        time = event.get("time")
        if not began and isinstance(time, (int, float)) and 0 < time < 1e11:  # noqa: PLR2004  (a plausible time)
            began = float(time)
        if host := str(event.get("host", "")):
            break
    return host, began


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


def merge(streams: Iterable[Iterable[LogLine]]) -> Iterator[LogLine]:
    """Return all log lines in the order of time; the order within each stream is kept.

    Lines of unknown time are sorted by their number: the first of each rank, then the second of each. The ranks run the
    same program, so this is the best guess.
    """
    return heapq.merge(*streams, key=lambda line: (line.time, line.number))


def read(streams: Iterable[Stream], since: float = 0.0) -> Iterator[LogLine]:
    """Return the log lines in all files, in the order of time.

    Args:
        streams: The files.
        since: A file that was last written before this moment is not opened. Seconds since 1970.
    """
    readers = []
    for stream in streams:
        with suppress(FileNotFoundError):  # a new run has moved it aside since it was found
            file = stream.path.stat()
            if file.st_size and file.st_mtime >= since:
                readers.append(Reader(stream))
    yield from merge(reader.lines() for reader in readers)
    for reader in readers:
        reader.close()


def follow(
    has_ended: Callable[[], bool], find: Callable[[], list[Stream]], is_written: Callable[[], bool] = lambda: True
) -> Iterator[LogLine | None]:
    """Return the log lines until the job has ended, also of ranks that begin later; None at each pause.

    Args:
        has_ended: Returns whether the job has ended.
        find: Returns the streams that exist by now.
        is_written: Returns whether nobody will write into them any more, once the job has ended.
    """
    readers: dict[tuple[Path, int], Reader] = {}
    has_paused = False
    while not has_ended():
        yield from _new_lines(readers, find())
        yield None
        with suppress(AttributeError, ValueError):  # a caller may have closed it
            sys.stdout.flush()
        time.sleep(_PAUSE)
        has_paused = True
    if has_paused:
        time.sleep(_DRAIN)
        until = time.monotonic() + _LATEST
        while not is_written() and time.monotonic() < until:
            time.sleep(_PAUSE)
    yield from _new_lines(readers, find(), whole=True)
    for reader in readers.values():
        reader.close()


def _new_lines(
    readers: dict[tuple[Path, int], Reader], streams: list[Stream], *, whole: bool = False
) -> Iterator[LogLine]:
    found = {key: stream for stream in streams if (key := _identity(stream.path))}
    gone = {key: readers.pop(key) for key in set(readers) - set(found)}
    for key, stream in found.items():
        with suppress(FileNotFoundError):  # a new run has moved it aside since it was found
            readers[key] = readers.get(key) or Reader(stream)
            readers[key].stream = stream  # the host becomes known later
    # A file that a new run has moved aside is read to its end; Open MPI's copy of a stream that is ours too is not.
    rests = [reader.lines() for key, reader in gone.items() if _identity(key[0]) != key]
    yield from merge([*rests, *(reader.lines(whole=whole) for reader in readers.values())])
    for reader in gone.values():
        reader.close()


def _identity(path: Path) -> tuple[Path, int] | None:
    """Return an identity that differs for a later file of the same name; None if there is no such file."""
    try:
        return path, path.stat().st_ino
    except OSError:
        return None
