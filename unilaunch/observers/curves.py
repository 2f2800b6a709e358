"""A model's curves while a job runs: the numbers of each step that rank 0 records, for TensorBoard or MLflow."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.request import Request, urlopen

from unilaunch.errors import OutputError, PluginError
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


Find = Callable[[], Path | None]
Write = Callable[[Sequence[Point]], None]


@contextmanager
def following(
    find: Find, layout: ReportLayout, write: Write, close: Callable[[], None], tell: Callable[[str], None]
) -> Iterator[None]:  # fmt: skip
    """Write rank 0's new points while the block runs, and the rest at its end.

    Args:
        find: Returns rank 0's folder; None while there is none. All functions are called in another thread.
        layout: The name of a step, and the file with its numbers, in addition to `events.jsonl`.
        write: Writes at most 1000 points, and none at first; after an OSError it gets the same points again.
        close: Called after the last points.
        tell: Shows the user a line, if the last points take too long.
    """
    ended, reader = Event(), _Reader(find, layout, write)
    thread = Thread(target=reader.follow, args=(ended, close), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_FAILING if reader.is_failing else _LAST)
        if thread.is_alive() and not reader.is_failing:
            tell(f"the last points of the curves were not taken within {_LAST:g} s: the end of the job is not in them")


@contextmanager
def writing(folder: Path, find: Find, layout: ReportLayout, tell: Callable[[str], None]) -> Iterator[None]:
    """Write rank 0's records into *folder*, with tensorboardX, while the block runs, and the rest at its end.

    Args:
        folder: The folder for `tensorboard --logdir`.
        find: Returns rank 0's folder; None while there is none. Called in another thread.
        layout: The layout of the model's report.
        tell: As in `following`.

    Raises:
        PluginError: tensorboardX is not installed.
        OutputError: The folder cannot be written.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise PluginError(f"--tensorboard {folder}: {error}: pip install 'unilaunch[tensorboard]'") from None
    try:
        writer = SummaryWriter(str(folder))
    except OSError as error:
        raise OutputError(f"--tensorboard {folder}: {error.strerror}: choose a folder that can be written") from None

    def write(points: Sequence[Point]) -> None:
        for point in points:
            writer.add_scalar(point.name, point.value, point.step, walltime=point.time)

    with following(find, layout, write, writer.close, tell):
        yield


class MlflowRun:
    """A run of the MLflow server at *url*, made at the first `write`; *tell* shows a line if points do not arrive.

    It uses MLflow's REST API. MLFLOW_EXPERIMENT_NAME and MLFLOW_TRACKING_TOKEN in *environ* have their usual meaning.
    """

    def __init__(
        self, url: str, name: str, options: Mapping[str, Any], environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> None:
        self.url, self.name, self.options, self.tell = url, name, options, tell
        self.experiment, self.run = environ.get("MLFLOW_EXPERIMENT_NAME") or "unilaunch", ""
        token = environ.get("MLFLOW_TRACKING_TOKEN")
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def write(self, points: Sequence[Point]) -> None:
        """Send points. Raises OSError if they do not arrive."""
        try:
            self.run = self.run or self._begin()
            metrics = [{"key": each.name, "value": each.value, "step": each.step, "timestamp": round(1000 * each.time)}
                       for each in points]  # fmt: skip
            self._post("runs/log-batch", run_id=self.run, metrics=metrics)
        except (OSError, LookupError, TypeError) as error:
            self.tell(f"--mlflow {self.url}: the curves do not arrive, the job goes on: {error}")
            self.tell = lambda _: None
            raise OSError from None

    def end(self, status: str) -> None:
        """Record how the job has ended: FINISHED, FAILED or KILLED. Raises OSError if that does not arrive."""
        if self.run:
            self._post("runs/update", run_id=self.run, status=status, end_time=round(1000 * time.time()))

    def _begin(self) -> str:
        quote = '"' if "'" in self.experiment else "'"  # MLflow's filters have no escape
        wanted = f"name = {quote}{self.experiment}{quote}"
        known = self._post("experiments/search", filter=wanted, max_results=1).get("experiments")
        number = (known[0] if known else self._post("experiments/create", name=self.experiment))["experiment_id"]
        made = self._post("runs/create", experiment_id=number, run_name=self.name, start_time=round(1000 * time.time()))
        run = str(made["run"]["info"]["run_id"])
        params = [{"key": key, "value": str(value)[:500]} for key, value in self.options.items()]
        self._post("runs/log-batch", run_id=run, params=params[:100])  # MLflow's limits
        return run

    def _post(self, method: str, **fields: Any) -> Any:
        address, body = f"{self.url.rstrip('/')}/api/2.0/mlflow/{method}", json.dumps(fields).encode()
        try:
            with urlopen(Request(address, body, self.headers), timeout=10) as answer:  # noqa: S310  (http only)
                return json.loads(answer.read())
        except (ValueError, HTTPException) as error:  # this is no MLflow server
            raise OSError(f"{type(error).__name__}: {error}") from None


class _Reader:
    def __init__(self, find: Find, layout: ReportLayout, write: Write) -> None:
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
