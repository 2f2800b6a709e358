"""The numbers of each step that rank 0 records, read while the job runs: for observers of a model's curves."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from unilaunch.interfaces.observer import Observed
from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.record import Record

_EVERY = 2.0  # seconds between two readings of rank 0's records
_LAST = 30.0  # seconds for the last points: a busy server takes long, and a writer whose disk is full blocks forever
_MOST = 1000  # points that are written at once: MLflow's limit
_FAILING = 1.0  # the same, where the last points could not be written


class Point(Record):
    """A number of a step.

    Attributes:
        name: Its name, as "seconds".
        value: The number.
        step: The step's number.
        time: When it was recorded, in seconds since 1970.
    """

    name: str
    value: float
    step: int
    time: float


Write = Callable[[Sequence[Point]], None]


@contextmanager
def following(job: Observed, write: Write, close: Callable[[], None]) -> Iterator[None]:
    """Write rank 0's new points while the block runs, and the rest at its end.

    Args:
        job: The job.
        write: Called in another thread, first without points, then with at most 1000 new ones. If it raises OSError, it
            is called with the same points again.
        close: Called after the last points, in the same thread.
    """
    ended, reader = Event(), _Reader(job.find, job.layout, write)
    thread = Thread(target=reader.follow, args=(ended, close), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_FAILING if reader.is_failing else _LAST)
        if thread.is_alive() and not reader.is_failing:
            job.say(f"the curves lack the end of the job: their last points were not taken within {_LAST:g} s")


class _Reader:
    def __init__(self, find: Callable[[], Path | None], layout: ReportLayout, write: Write) -> None:
        self.find, self.layout, self.write = find, layout, write
        self.read = dict.fromkeys(filter(None, (layout.series, "events.jsonl")), 0)
        self.of_series: set[str] = set()  # names of numbers that the series file has for every step
        self.is_failing = False

    def follow(self, ended: Event, close: Callable[[], None]) -> None:
        is_last, self.is_failing = False, not self._is_written(())
        while not is_last:
            is_last = ended.wait(_EVERY)
            if folder := self.find():
                for name in self.read:
                    self._pass_on(folder, name)
        with suppress(OSError):
            close()

    def _pass_on(self, folder: Path, name: str) -> None:
        size, points = _read_points(folder / name, self.read[name], self.layout.step)
        if name == self.layout.series:
            self.of_series |= {point.name for point in points}
        else:
            points = [point for point in points if point.name not in self.of_series]
        pieces = (points[first : first + _MOST] for first in range(0, len(points), _MOST))
        self.is_failing = not all(map(self._is_written, pieces))
        if not self.is_failing:
            self.read[name] += size

    def _is_written(self, points: Sequence[Point]) -> bool:
        try:
            self.write(points)
        except OSError:
            return False
        return True


def _read_points(path: Path, begin: int, step: str) -> tuple[int, list[Point]]:
    """Return the bytes of the new lines, and the numbers of each line that belongs to a step."""
    new = b""
    with suppress(OSError), path.open("rb") as file:  # the file does not exist yet
        file.seek(begin)
        new, end, _ = file.read().rpartition(b"\n")  # the last line may be incomplete
        new += end
    points: list[Point] = []
    for line in new.splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and type(row.get(step)) is int:
                when = row.get("time") or time.time()
                numbers = {name: row[name] for name in row.keys() - {step, "time"}}
                points += [Point(*one, row[step], when) for one in numbers.items() if type(one[1]) in {int, float}]
    return len(new), points
