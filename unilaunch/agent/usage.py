"""`usage.jsonl`: the processor time and the memory of a rank, read from /proc about once a second."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from resource import struct_rusage

from unilaunch.launchers.ancestry import stat_of
from unilaunch.output.files import append

_LEAST = 1.0  # seconds between two rows
_SHARE = 1 / 500  # least share of the elapsed time between two rows: the file of a day has 3,000 rows, not 86,400
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Usage:
    """Records the processor time and the memory of a rank; this costs about 0.1 ms a second.

    Args:
        process: The rank's process number.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._path: Path | None = None
        self._began = self._due = 0.0

    def open(self, folder: Path) -> None:
        """Write to *folder* from now on."""
        self._path = folder / "usage.jsonl"
        self._began = self._due = time.monotonic()

    def tick(self, now: float) -> None:
        """Write a row if it is time; *now* is of `time.monotonic`."""
        if self._path and now >= self._due:
            self._due = now + max(_LEAST, _SHARE * (now - self._began))
            with suppress(OSError):  # the process has ended
                cpu, memory = read_usage(self._process)
                self._write(cpu=cpu, memory=memory)

    def conclude(self, usage: struct_rusage) -> None:
        """Write the last row: all processor time, and the peak of the memory."""
        self._write(cpu=round(usage.ru_utime + usage.ru_stime, 3), peak=usage.ru_maxrss * 1024)

    def _write(self, **row: float) -> None:
        if self._path:
            with suppress(OSError):  # a full disk must not make the job fail
                append(self._path, json.dumps({"time": round(time.time(), 3), **row}) + "\n")


def read_usage(process: int) -> tuple[float, int]:
    """Return the processor seconds of a process and of its ended children, and its memory in bytes."""
    fields = stat_of(process)[1]
    return sum(map(int, fields[11:15])) / _TICKS, int(fields[21]) * _PAGE
