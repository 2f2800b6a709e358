"""Read the output folder of a run. Every file may be missing, since a run may have failed or may still run."""

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from socket import gethostname
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from unilaunch.errors import InputError, PluginError, one_line
from unilaunch.folder.claim import is_held, read_marker
from unilaunch.folder.failure import Failure
from unilaunch.folder.files import as_json, last_lines, read_rows, refuse_unreadable
from unilaunch.interfaces import plugins
from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.monitor.stragglers import Straggler
from unilaunch.monitor.verdict import judge
from unilaunch.record import Record, field, replace
from unilaunch.spec.spec_file import LEFT_OUT, STARTED_IN

LARGEST = 1e300  # of a figure in a chart or a mean: differences and sums of larger ones overflow
#: A figure in a file.
Figure = Annotated[int | float, Field(ge=-LARGEST, le=LARGEST)]
#: Log lines from WARNING up that are kept of a rank.
WARNINGS = 20
#: Last lines of each of a rank's streams.
LAST = 8
_LONGEST = 1 << 20  # letters of a line; a longer one is read in pieces
_LEVELS = (" WARNING ", " ERROR ", " CRITICAL ")
_NUMBERS = TypeAdapter(dict[str, Figure])

M = TypeVar("M")
#: Seconds from a verdict to the end of the last rank, at most: on several hosts, by Open MPI 4.
_ABORT = 8.0
#: Seconds for which no agent holds the folder of a job that has not ended: its agents were killed.
_LEFT = 4.0
_TAIL = 4096  # bytes at the end of events.jsonl that hold the last event


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


class RankRun(Record):
    """What one rank has left.

    Attributes:
        rank: Its number.
        host: Where it ran; "?" if unknown.
        device: Its device; "?" if unknown.
        exit_code: None if it has not ended, or if that is unknown.
        series: Each step's figures, by name.
        events: The events of the rank.
        failure: How it failed; None if it did not.
        warnings: Lines of its log from WARNING up.
        usage: What it used, over time.
        sizes: How many bytes it had written, over time (seconds since 1970).
        last: The end of what it wrote.
    """

    rank: int
    host: str
    device: str
    exit_code: int | None
    series: Sequence[Mapping[str, int | float]] = field(default_factory=list)
    events: Sequence[Event] = field(default_factory=list)
    failure: Failure | None = None
    warnings: Sequence[str] = field(default_factory=list)
    usage: Sequence[UsageRow] = field(default_factory=list)
    sizes: Sequence[tuple[float, int]] = field(default_factory=list)
    last: Sequence[str] = field(default_factory=list)

    @property
    def times(self) -> list[float]:
        """The times of its events, in seconds since 1970."""
        noted = [event.time for event in self.events if event.time is not None]
        return [*noted, *(row.time for row in self.usage), *(time for time, _ in self.sizes)]


class Run(Record):
    """What a run has left.

    Attributes:
        target: The model, or the program; "run" if unknown.
        layout: The layout of the page.
        missing: Why it is not the layout that the model defines; "" if it is.
        facts: Every number and text of its spec and of its result, by name.
        options: What its spec says, by name: the program's arguments, and every option that has a value.
        result: Its result; empty for a program, and of a run that failed or goes on.
        report: How it failed; None if it did not.
        ranks: In their order.
    """

    target: str
    layout: ReportLayout
    missing: str
    facts: dict[str, str | int | float]
    result: Result
    report: Report | None
    ranks: list[RankRun]
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def began(self) -> float | None:
        """When it began, in seconds since 1970; None if unknown."""
        return min((time for rank in self.ranks for time in rank.times), default=None)

    @property
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


def read_end(folder: Path) -> tuple[Report | None, list[RankRun]]:
    """Return how a run failed, None if it did not, and its ranks without their output, series and usage.

    Raises:
        InputError: It is not an output folder, or a file in it cannot be read.
    """
    with _reading(folder):
        ranks = _ranks(folder, None)
        return _report(folder, ranks), ranks


def read_run(folder: Path) -> Run:
    """Read an output folder.

    Raises:
        InputError: It is not an output folder, or a file in it cannot be read.
    """
    with _reading(folder):
        spec = _read(folder / "spec.json", Settings) or Settings()
        result = _read(folder / "result.json", Result) or Result()
        model = result.model if isinstance(result.model, str) else spec.target if spec.options is not None else None
        layout, missing = _layout(model)
        ranks = _ranks(folder, layout)
        counted = {"world_size": len(ranks), "num_hosts": len({rank.host for rank in ranks})}
        extra = {name: value for name, value in (spec.model_extra or {}).items() if name not in {LEFT_OUT, STARTED_IN}}
        every = counted | (spec.options or {}) | extra | result.model_dump(exclude_none=True)
        facts = {name: value for name, value in every.items() if isinstance(value, str | int | float)}
        report = _report(folder, ranks)
        told = {"target": spec.target, **extra, **(spec.options or {})}
        options = {name: _option(value) for name, value in told.items() if value not in (None, [], "")}
        return Run(model or spec.target or "run", layout, missing, facts, result, report, ranks, options)


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or folder}: cannot be read: {error.strerror}") from None


def _ranks(folder: Path, layout: ReportLayout | None) -> list[RankRun]:
    rank_dirs = [path for path in folder.glob("rank.*") if path.name[5:].isdecimal() and path.is_dir()]
    if not rank_dirs:
        refuse_unreadable(folder)
        raise InputError(f"{folder}: no output of a run: expected {folder}/rank.0/events.jsonl and the like")
    return sorted((_rank(path, layout) for path in rank_dirs), key=lambda rank: rank.rank)


def _option(value: object) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return value if isinstance(value, str) else json.dumps(value)


def _layout(model: str | None) -> tuple[ReportLayout, str]:
    """Return the layout of a model's report, and why it is not the layout that the model defines."""
    if model is None:
        return ReportLayout(), ""
    try:
        return plugins.load_model(model).report, ""
    except PluginError as error:
        return ReportLayout(), f"the page shows no curves: {error}"


def _rank(folder: Path, layout: ReportLayout | None) -> RankRun:
    """Return what a rank has left; without a layout only its events and its failure."""
    number = int(folder.name[5:])
    events, lost = _lines(folder / "events.jsonl", TypeAdapter(Event))
    failure = _read(folder / "failure.json", Failure)
    ended = next((event.exit_code for event in events if event.phase == "end"), None)
    records: list[Failure | Event] = [failure, *events] if failure else [*events]
    run = RankRun(
        rank=number,
        host=next((record.host for record in records if record.host), "?"),
        device=next((record.device for record in records if record.device), "?"),
        exit_code=failure.exit_code if failure else ended,
        events=events,
        failure=failure,
    )
    if layout is None:
        return run
    series, also_lost = _lines(folder / layout.series, _NUMBERS) if layout.series else ([], [])
    return replace(
        run,
        series=series,
        warnings=[*lost, *also_lost, *_stragglers(number, events), *_warnings(folder / "stderr")],
        usage=_lines(folder / "usage.jsonl", TypeAdapter(UsageRow))[0],
        sizes=_sizes(folder / "times"),
        last=[*last_lines(folder / "stdout", LAST), *last_lines(folder / "stderr", LAST)],
    )


def _sizes(path: Path) -> list[tuple[float, int]]:
    """Return how many bytes a rank had written when: lines of a time, and of the sizes of its two files."""
    sizes = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            time, out, err = line.split()
            if abs(float(time)) <= LARGEST and (size := int(out) + int(err)) <= LARGEST:
                sizes.append((float(time), size))
    return sizes


def _stragglers(rank: int, events: Sequence[Event]) -> list[str]:
    """Return a line for each time at which the monitor found that this rank held up the others."""
    lines: list[str] = []
    for event in events:
        fields = event.model_dump()
        if "straggler" in fields and len(lines) < WARNINGS:
            with suppress(ValidationError):  # a damaged line
                told = {"rank": rank, **{name: fields.get(name) for name in ("host", "factor", "steps")}}
                lines.append(TypeAdapter(Straggler).validate_python(told).line)
    return lines


def _report(folder: Path, ranks: Sequence[RankRun]) -> Report | None:
    """Return the verdict; over the ranks' own failures, where the launcher ended before it wrote `report.json`."""
    if report := _read(folder / "report.json", Report):
        return report
    failures = sorted((rank.failure for rank in ranks if rank.failure), key=lambda failure: failure.time)
    if not failures:
        return None
    return Report.model_validate(judge(failures).as_json())


@cache
def _adapter(model: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(model)  # it takes 2 ms, and there is a file for each rank


def _read(path: Path, model: type[M]) -> M | None:
    """Return the content of a file; None if there is no file."""
    if not path.exists():
        return None
    data = path.read_bytes()
    with suppress(ValueError, RecursionError):  # an earlier version wrote file names that are no text
        data = as_json(json.loads(data)).encode()
    try:
        content: M = _adapter(model).validate_json(data)  # type: ignore[arg-type]  # a class has a hash
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise InputError(f"{path}: cannot be read: {place + ': ' if place else ''}{problem['msg']}") from None
    return content


def _lines(path: Path, adapter: TypeAdapter[M]) -> tuple[list[M], list[str]]:
    """Return a file's lines, and a warning if some are invalid.

    A last line without an end is left out silently: it is still being written, or the rank was killed meanwhile.
    """
    if not path.exists():
        return [], []
    lines = path.read_bytes().split(b"\n")[:-1]
    valid = []
    for line in lines:
        try:
            valid.append(adapter.validate_json(line))
        except ValidationError:
            continue
    lost = len(lines) - len(valid)
    return valid, [f"{path}: {lost} of {len(lines)} lines are not valid and are left out"] if lost else []


def _warnings(path: Path) -> list[str]:
    warnings: list[str] = []
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in iter(lambda: file.readline(_LONGEST), ""):
                if any(level in line for level in _LEVELS):
                    warnings.append(line.rstrip())
                    if len(warnings) == WARNINGS:
                        break
    return warnings


def have_ended(folder: Path) -> bool:
    """Return whether every rank that writes into *folder* has ended.

    A rank that was ended because another rank failed records nothing. It counts as ended after the time in which a
    job ends after its verdict.
    """
    ranks = [path for path in folder.glob("rank.*") if (path / "stdout").exists()]
    return bool(ranks) and (all(map(_has_ended, ranks)) or _was_aborted(folder))


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


def _has_ended(rank: Path) -> bool:
    """A rank records its end, and its agent its failure; of any other end only the peak of memory is written."""
    return (
        (rank / "failure.json").exists()
        or any(event.get("phase") == "end" for event in read_rows(rank / "events.jsonl", _TAIL))
        or any("peak" in used for used in read_rows(rank / "usage.jsonl", _TAIL))
    )


def _was_aborted(folder: Path) -> bool:
    try:
        announced = (folder / "report.json").stat().st_mtime
    except OSError:
        return False
    return time.time() - announced > _ABORT and _json(folder / "spec.json").get("abort") is not False


def first_failure(folder: Path) -> str:
    """Return in one line which rank failed first, why, and where its log is; "" if none did."""
    report = _json(folder / "report.json")
    if "verdict" in report:
        first, line = report.get("first"), str(report["verdict"])
        log = first.get("log") if isinstance(first, dict) else ""
    else:
        failures = [found for path in folder.glob("rank.*/failure.json") if (found := _failure(path))]
        if not failures:
            return ""
        verdict = judge(sorted(failures, key=lambda failure: failure.time))
        line, log = verdict.line, verdict.first.log
    return one_line(f"{line}; its log is {log}" if log else line)


def _failure(path: Path) -> Failure | None:
    with suppress(ValueError):
        return cast("Failure", _adapter(Failure).validate_python(_json(path)))
    return None


def _json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
