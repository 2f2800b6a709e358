"""One stream's lines, each with its time, its level and its text."""

import re
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from unilaunch.logs.layouts import Stream

LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL")
#: A line of unilaunch.output.log: "04:32:20.123 node0:3 INFO    epoch 1/200".
_RECORD = re.compile(r"(?P<clock>\d\d:\d\d:\d\d\.\d{3}) (?P<host>\S+):\d+ (?P<level>[A-Z]+) +(?P<text>.*)", re.DOTALL)
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a rank wrote.

    Attributes:
        time: When, in seconds since 1970.
        rank: Who.
        host: Where; "" if unknown.
        stream: "stdout" or "stderr".
        level: A log record's level, also of the lines that belong to it; INFO of all else.
        text: Without its time and name, if it is a record.
    """

    time: float
    rank: int
    host: str
    stream: str
    level: str
    text: str


class Reader:
    """Reads a stream from where it stopped the last time; a last line without an end waits for it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.file = stream.path.open("rb")
        self.sizes: list[int] = []
        self.moments: list[float] = []
        self.times = stream.times.open(encoding="ascii") if stream.times else None
        self.position = 0
        self.time = stream.began
        self.level = "INFO"

    def lines(self, *, whole: bool = True) -> Iterator[Line]:
        """Return the lines that have come.

        Args:
            whole: Also a last line that has no end yet: the rank will write no more.
        """
        self._read_times()
        while line := self.file.readline():
            if not line.endswith(b"\n") and not whole:
                self.file.seek(self.position)
                return
            self.position += len(line)
            yield self._line(line.rstrip(b"\r\n").rpartition(b"\r")[2].decode(errors="replace"))

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        if self.times:
            self.times.close()

    def _line(self, text: str) -> Line:
        if self.stream.name == "stderr" and (found := _RECORD.match(text)):
            self.level = found["level"]
            self.time = max(self.time, self._of_day(found["clock"]))
            return Line(self.time, self.stream.rank, found["host"], "stderr", self.level, found["text"])
        self.time = max(self.time, self._of_size())
        return Line(self.time, self.stream.rank, self.stream.host, self.stream.name, self.level, text)

    def _read_times(self) -> None:
        column = 1 if self.stream.name == "stdout" else 2
        for entry in self.times or ():
            words = entry.split()
            if len(words) == 3:  # noqa: PLR2004  (time and two sizes; the last entry may not be whole yet)
                self.moments.append(float(words[0]))
                self.sizes.append(int(words[column]))

    def _of_size(self) -> float:
        """Return when the file was as large as it is up to here."""
        place = bisect_left(self.sizes, self.position)
        return self.moments[place] if place < len(self.moments) else self.time

    def _of_day(self, clock: str) -> float:
        """Return a time of day as one on or after the day on which the rank began."""
        begin = time.localtime(self.stream.began)
        hours, minutes, seconds = clock.split(":")
        midnight = self.stream.began - (begin.tm_hour * 3600 + begin.tm_min * 60 + begin.tm_sec) - self.stream.began % 1
        moment = midnight + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        return moment if moment > self.stream.began - 60 else moment + _DAY
