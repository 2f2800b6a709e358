"""What a rank does and uses: its agent sends changes of its progress to the monitor, and writes `usage.jsonl`."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from resource import struct_rusage

from unilaunch.agent.output import Output
from unilaunch.folder.files import append
from unilaunch.interfaces.calls import read as read_calls
from unilaunch.json_value import JsonValue
from unilaunch.launchers.ancestry import stat_of
from unilaunch.monitor.messages import Progress
from unilaunch.rank.status import StatusPage

_TELL = 0.5  # least seconds between two messages on progress in one phase
_TELL_PACE = 1.0  # the same, if only the pace has changed
_TELL_MEMORY = 10.0  # the same, if neither has changed: the memory is sent
_LOOK = 0.1  # seconds between two readings of the status page
_LEAST = 1.0  # seconds between two rows of `usage.jsonl`
_SHARE = 1 / 500  # least share of the elapsed time between two rows: the file of a day has 3,000 rows, not 86,400
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class ProgressTeller:
    """Reads a rank's status page, and how much it has written; the monitor gets the time since a change was noticed.

    Args:
        pid: The rank's process number.
        page: The status page.
        output: The rank's output: a rank that writes makes progress, unless it waits for other ranks.
        tell: Called with each message to send.
    """

    def __init__(self, pid: int, page: StatusPage, output: Output, tell: Callable[[Progress], None]) -> None:
        self.pid, self.page, self.output, self.tell = pid, page, output, tell
        self.looked_at = self.seen_at = self.sent_at = 0.0
        self.written = 0  # bytes that the rank had written when it last was in no wait for others
        self.seen: object = None  # the newest state
        self.sent: tuple[object, object, object] = (None, None, None)  # of the last message: phase, state and pace

    @property
    def doing(self) -> dict[str, JsonValue]:
        """The rank's newest status."""
        return self.page.read()[1]

    def tick(self, now: float, *, last: bool = False) -> None:
        """Send what has changed, if it is time or the *last* time; *now* is in seconds of `time.monotonic`."""
        if now - self.looked_at < _LOOK and not last:
            return
        self.looked_at = now
        (count, facts), pace, waits = self.page.read(), self.page.read_pace(), self.page.is_waiting
        calls, kinds, names = read_calls(self.page.calls)
        if not waits:
            self.written = self.output.arrived
        phase, current, moved = facts.get("phase"), (count, self.written, waits), (pace, calls)
        if (current, pace.steps, calls) != self.seen:
            self.seen_at, self.seen = now, (current, pace.steps, calls)
        sent_phase, sent, sent_moved = self.sent
        changed = 0.0 if phase != sent_phase else _TELL  # if this agent is killed, the newest phase is known
        pause = changed if current != sent else _TELL_PACE if moved != sent_moved else _TELL_MEMORY
        if now - self.sent_at >= pause or (last and (phase, current, moved) != self.sent):
            self.sent_at, self.sent = now, (phase, current, moved)
            memory = 0
            with suppress(OSError, IndexError):  # the process has ended
                _, memory = read_usage(self.pid)
            self.tell(Progress(facts, round(now - self.seen_at, 3), *pace, memory, waits, calls, kinds.hex(), names))


class Usage:
    """Records the processor time and the memory of a rank, from /proc; this costs about 0.1 ms a second."""

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
