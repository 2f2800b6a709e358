"""A run, as its output folder tells it: the one reader of that folder, for logs, report, status and stacks.

Every file may be missing, since a run may have failed or may still run. A file is read when its content is first asked
for: how a run ended is known without a look at what its ranks wrote.
"""

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from socket import gethostname
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from unilaunch.errors import InputError, PluginError
from unilaunch.folder.claim import is_held, read_marker
from unilaunch.folder.failure import Failure
from unilaunch.folder.files import last_lines, read_rows, refuse_unreadable
from unilaunch.folder.folder import REPORT, RESULT, SPEC_FILE
from unilaunch.interfaces import plugins
from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.monitor.stragglers import Straggler
from unilaunch.monitor.verdict import judge
from unilaunch.spec.task import LEFT_OUT, STARTED_IN

LARGEST = 1e300  # of a figure in a chart or a mean: differences and sums of larger ones overflow
#: A figure in a file.
Figure = Annotated[int | float, Field(ge=-LARGEST, le=LARGEST)]
_WARNINGS = 20  # log lines from WARNING up that are kept of a rank
_LAST = 8  # last lines of each of a rank's streams
_LONGEST = 1 << 20  # letters of a line; a longer one is read in pieces
_LEVELS = (" WARNING ", " ERROR ", " CRITICAL ")
_ABORT = 8.0  # seconds from a verdict to the end of the last rank, at most: on several hosts, by Open MPI 4
#: Seconds for which no agent holds the folder of a job that has not ended: its agents were killed.
_LEFT = 4.0
_TAIL = 4096  # bytes at the end of events.jsonl that hold the last event

M = TypeVar("M")


class Event(BaseModel):
    """A line of `events.jsonl`; `extra` holds a model's fields."""

    model_config = ConfigDict(extra="allow")
    time: Figure | None = None
    phase: str | None = None
    host: str | None = None
    device: str | None = None
    exit_code: int | None = None
    command: list[str] = []
    versions: dict[str, str] = {}


class UsageRow(BaseModel):
    """A line of `usage.jsonl`: processor seconds so far, and the memory in bytes; in the last line its peak."""

    time: Figure
    cpu: Figure
    memory: int | None = None
    peak: int | None = None


class Result(BaseModel):
    """`result.json`; `extra` holds a model's figures."""

    model_config = ConfigDict(extra="allow")
    model: Any = None  # a program's result may have other things of these names
    versions: Any = None

    @property
    def figures(self) -> dict[str, Any]:
        """The model's figures, by name."""
        return self.model_extra or {}

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Each rank's figures, if the model returns them."""
        rows = self.figures.get("ranks")
        return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else []


class Group(BaseModel):
    """Ranks with the same failure, or with the same stack."""

    ranks: list[int]
    what: str = ""
    where: str = ""
    stack: str = ""


class Report(BaseModel):
    """`report.json`."""

    verdict: str
    first: Failure
    consequences: list[Group] = []
    stacks: list[Group] = []


class Settings(BaseModel):
    """`spec.json`; its other fields are `extra`. Only a model's has `options`."""

    model_config = ConfigDict(extra="allow")
    target: str | None = None
    options: dict[str, Any] | None = None

    @property
    def others(self) -> dict[str, Any]:
        """Its other fields, by name."""
        return {name: value for name, value in (self.model_extra or {}).items() if name not in {LEFT_OUT, STARTED_IN}}


class RankRun:
    """What one rank has left in its folder.

    Args:
        folder: The rank's folder.
        run: The run that it belongs to.

    Attributes:
        rank: Its number.

    Raises:
        InputError: A file cannot be read; every attribute raises it that needs the file.
    """

    def __init__(self, folder: Path, run: "Run") -> None:
        self.folder, self.rank, self._run = folder, int(folder.name[5:]), run

    @property
    def host(self) -> str:
        """Where it ran; "?" if unknown."""
        return next((record.host for record in self._records if record.host), "?")

    @property
    def device(self) -> str:
        """Its device; "?" if unknown."""
        return next((record.device for record in self._records if record.device), "?")

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None if it has not ended, or if that is unknown."""
        ended = next((event.exit_code for event in self.events if event.phase == "end"), None)
        return self.failure.exit_code if self.failure else ended

    @cached_property
    def failure(self) -> Failure | None:
        """How it failed; None if it did not."""
        return _read_json(self.folder / "failure.json", Failure)

    @property
    def events(self) -> Sequence[Event]:
        """Its events."""
        return self._events[0]

    @property
    def series(self) -> Sequence[Mapping[str, int | float]]:
        """Each step's figures, by name."""
        return self._series[0]

    @cached_property
    def usage(self) -> Sequence[UsageRow]:
        """What it used, over time."""
        return _read_lines(self.folder / "usage.jsonl", UsageRow)[0]

    @cached_property
    def sizes(self) -> Sequence[tuple[float, int]]:
        """How many bytes it had written, over time (seconds since 1970)."""
        sizes = []
        for line in (_read(self.folder / "times") or b"").splitlines():
            with suppress(ValueError):
                time, out, err = line.split()
                if abs(float(time)) <= LARGEST and (size := int(out) + int(err)) <= LARGEST:
                    sizes.append((float(time), size))
        return sizes

    @cached_property
    def warnings(self) -> Sequence[str]:
        """What the page warns of: lines that were lost, waits for this rank, and lines of its log from WARNING up."""
        return [*self._events[1], *self._series[1], *self._delays(), *_warnings(self.folder / "stderr")]

    @cached_property
    def last(self) -> Sequence[str]:
        """The end of what it wrote."""
        return [line for name in ("stdout", "stderr") for line in last_lines(self.folder / name, _LAST)]

    @property
    def times(self) -> list[float]:
        """The times of its events, in seconds since 1970."""
        noted = [event.time for event in self.events if event.time is not None]
        return [*noted, *(row.time for row in self.usage), *(time for time, _ in self.sizes)]

    @cached_property
    def _events(self) -> tuple[list[Event], list[str]]:
        return _read_lines(self.folder / "events.jsonl", Event)

    @cached_property
    def _series(self) -> tuple[list[dict[str, int | float]], list[str]]:
        name = self._run.layout.series
        return _read_lines(self.folder / name, dict[str, Figure]) if name else ([], [])

    @property
    def _records(self) -> Sequence[Failure | Event]:
        return [self.failure, *self.events] if self.failure else self.events

    def _delays(self) -> list[str]:
        """Return a line for each time at which the monitor found that this rank held up the others."""
        lines: list[str] = []
        for event in self.events:
            fields = event.model_extra or {}
            if "straggler" in fields and len(lines) < _WARNINGS:
                with suppress(ValidationError):  # a damaged line
                    found = {name: fields.get(name) for name in ("factor", "steps")}
                    straggler = {"rank": self.rank, "host": event.host, **found}
                    lines.append(_adapter(Straggler).validate_python(straggler).line)
        return lines


class Run:
    """What a run has left in its output folder.

    Args:
        folder: The output folder.

    Raises:
        InputError: It is not an output folder, or a file cannot be read; every attribute raises it that needs the file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        """Its folder, as text."""
        return str(self.folder).encode(errors="replace").decode()

    @cached_property
    def spec(self) -> Settings:
        """Its spec; empty if unknown."""
        return _read_json(self.folder / SPEC_FILE, Settings) or Settings()

    @cached_property
    def result(self) -> Result:
        """Its result; empty for a program, and of a run that failed or goes on."""
        return _read_json(self.folder / RESULT, Result) or Result()

    @cached_property
    def ranks(self) -> Sequence[RankRun]:
        """Its ranks, in their order; at least one."""
        with _reading(self.folder):
            found = [path for path in self.folder.glob("rank.*") if path.name[5:].isdecimal() and path.is_dir()]
        if not found:
            refuse_unreadable(self.folder)
            folder = self.folder
            raise InputError(f"{folder}: no output of a run: expected {folder}/rank.0/events.jsonl and the like")
        return sorted((RankRun(path, self) for path in found), key=lambda rank: rank.rank)

    @cached_property
    def report(self) -> Report | None:
        """The verdict; over the ranks' own failures, where the launcher ended before it wrote one. None: no failure."""
        if report := _read_json(self.folder / REPORT, Report):
            return report
        failures = list[Failure]()
        for rank in self.ranks:
            with suppress(InputError):  # one that cannot be read hides none of the others
                failures += filter(None, [rank.failure])
        if not failures:
            return None
        return Report.model_validate(judge(sorted(failures, key=lambda failure: failure.time)).as_json())

    @property
    def target(self) -> str:
        """The model, or the program; "run" if unknown."""
        return self._model or self.spec.target or "run"

    @property
    def layout(self) -> ReportLayout:
        """The layout of the page."""
        return self._layout[0]

    @property
    def missing(self) -> str:
        """Why the layout is not the one that the model defines; "" if it is."""
        return self._layout[1]

    @cached_property
    def facts(self) -> Mapping[str, str | int | float]:
        """Every number and text of its spec and of its result, by name."""
        counted = {"world_size": len(self.ranks), "num_hosts": len({rank.host for rank in self.ranks})}
        every = counted | (self.spec.options or {}) | self.spec.others | self.result.model_dump(exclude_none=True)
        return {name: value for name, value in every.items() if isinstance(value, str | int | float)}

    @cached_property
    def options(self) -> Mapping[str, str]:
        """What its spec says, by name: the program's arguments, and every option that has a value."""
        every = {"target": self.spec.target, **self.spec.others, **(self.spec.options or {})}
        return {name: _option(value) for name, value in every.items() if value not in (None, [], "")}

    @cached_property
    def began(self) -> float | None:
        """When it began, in seconds since 1970; None if unknown."""
        return min((time for rank in self.ranks for time in rank.times), default=None)

    @cached_property
    def seconds(self) -> float | None:
        """How long it took, or has taken so far; None if unknown."""
        last = max((time for rank in self.ranks for time in rank.times), default=None)
        return None if last is None or self.began is None else last - self.began

    @property
    def command(self) -> Sequence[str]:
        """The command line, from rank 0's events."""
        return next((event.command for rank in self.ranks for event in rank.events if event.command), [])

    @property
    def versions(self) -> Mapping[str, str]:
        """The version of each library that is known."""
        noted = {name: version for event in self.ranks[0].events for name, version in event.versions.items()}
        own = self.result.versions if isinstance(self.result.versions, dict) else {}
        return noted | {str(name): str(version) for name, version in own.items()}

    @property
    def _model(self) -> str | None:
        if isinstance(self.result.model, str):
            return self.result.model
        return self.spec.target if self.spec.options is not None else None

    @cached_property
    def _layout(self) -> tuple[ReportLayout, str]:
        if self._model is None:
            return ReportLayout(), ""
        try:
            return plugins.load_model(self._model).report, ""
        except PluginError as error:
            return ReportLayout(), f"the page shows no curves: {error}"


def _option(value: object) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return value if isinstance(value, str) else json.dumps(value)


def have_ended(folder: Path) -> bool:
    """Return whether every rank that writes into *folder* has ended.

    A rank that was ended because another rank failed records nothing. It counts as ended after the time in which a
    job ends after its verdict.
    """
    ranks = [path for path in folder.glob("rank.*") if (path / "stdout").exists()]
    return bool(ranks) and (all(map(_has_ended, ranks)) or _was_aborted(folder))


def _has_ended(rank: Path) -> bool:
    """A rank records its end, and its agent its failure; of any other end only the peak of memory is written."""
    return (
        (rank / "failure.json").exists()
        or any(event.get("phase") == "end" for event in read_rows(rank / "events.jsonl", _TAIL))
        or any("peak" in used for used in read_rows(rank / "usage.jsonl", _TAIL))
    )


def _was_aborted(folder: Path) -> bool:
    try:
        announced = (folder / REPORT).stat().st_mtime
    except OSError:
        return False
    if time.time() - announced <= _ABORT:
        return False
    with suppress(InputError):
        return Run(folder).spec.others.get("abort") is not False
    return True


class Ending:
    """Tells whether the job that writes into *folder* has ended, also if its agents were killed on this host.

    They hold the folder. A job that begins again lets it go for a moment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.held_at = folder, time.monotonic()

    def __call__(self) -> bool:
        """Return whether the job has ended."""
        marker = read_marker(self.folder)
        here = marker is not None and marker.host == gethostname() and not Path(f"/proc/{marker.process}").exists()
        if not here or is_held(self.folder):
            self.held_at = time.monotonic()
        return have_ended(self.folder) or time.monotonic() - self.held_at > _LEFT


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)  # it takes 2 ms, and there is a file for each rank


def _parse(data: bytes, kind: type[M]) -> M:
    value: M = _adapter(kind).validate_json(data)  # type: ignore[arg-type]  # a class has a hash
    return value


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or path}: cannot be read: {error.strerror}") from None


def _read(path: Path) -> bytes | None:
    """Return a file's content; None if there is no file."""
    with _reading(path):
        return path.read_bytes() if path.exists() else None


def _read_json(path: Path, kind: type[M]) -> M | None:
    """Return the value in a file; None if there is no file."""
    data = _read(path)
    if data is None:
        return None
    try:
        return _parse(data, kind)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise InputError(f"{path}: cannot be read: {place + ': ' if place else ''}{problem['msg']}") from None


def _read_lines(path: Path, kind: type[M]) -> tuple[list[M], list[str]]:
    """Return the values in a file's lines, and a warning if some are invalid.

    A last line without an end is left out silently: it is still being written, or the rank was killed meanwhile.
    """
    lines = (_read(path) or b"").split(b"\n")[:-1]
    valid = []
    for line in lines:
        with suppress(ValidationError):
            valid.append(_parse(line, kind))
    lost = len(lines) - len(valid)
    return valid, [f"{path}: {lost} of {len(lines)} lines are not valid and are left out"] if lost else []


def _warnings(path: Path) -> list[str]:
    with _reading(path):
        if not path.exists():
            return []
        with path.open(encoding="utf-8", errors="replace") as file:  # a day's output does not fit into the memory
            lines = iter(lambda: file.readline(_LONGEST), "")
            found = (line.rstrip() for line in lines if any(level in line for level in _LEVELS))
            return list(islice(found, _WARNINGS))
