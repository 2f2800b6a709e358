"""Read the output folder of a run: every file may be missing, since a run may have failed or still go on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from unilaunch import plugins
from unilaunch.errors import InputError, PluginError
from unilaunch.monitor.stragglers import Straggler
from unilaunch.monitor.verdict import judge
from unilaunch.output.failure import Failure
from unilaunch.report_layout import ReportLayout

#: Log lines from WARNING up that are kept of a rank.
WARNINGS = 20
_LEVELS = (" WARNING ", " ERROR ", " CRITICAL ")
_NUMBERS = TypeAdapter(dict[str, int | float])

M = TypeVar("M")


class Event(BaseModel):
    """A line of `events.jsonl`; what a model has noted is `extra`."""

    model_config = ConfigDict(extra="allow")
    phase: str | None = None
    host: str | None = None
    device: str | None = None
    exit_code: int | None = None


class Result(BaseModel):
    """`result.json`; a model's own figures are `extra`."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    versions: dict[str, str] = {}

    @property
    def figures(self) -> dict[str, Any]:
        """The model's own figures, by name."""
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


class Told(BaseModel):
    """What the monitor has noted of a straggler."""

    host: str = "?"
    factor: float = 0.0
    steps: int = 0


class Settings(BaseModel):
    """`spec.json`; its other fields are `extra`. Only a model's has `options`."""

    model_config = ConfigDict(extra="allow")
    target: str | None = None
    options: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RankRun:
    """What one rank has left.

    Attributes:
        rank: Its number.
        host: Where it ran; "?" if unknown.
        device: What it ran on; "?" if unknown.
        exit_code: None if it has not ended, or if that is unknown.
        series: Each step's figures, by name.
        events: What it has noted.
        failure: How it failed; None if it did not.
        warnings: Lines of its log from WARNING up.
    """

    rank: int
    host: str
    device: str
    exit_code: int | None
    series: Sequence[Mapping[str, int | float]] = field(default_factory=list)
    events: Sequence[Event] = field(default_factory=list)
    failure: Failure | None = None
    warnings: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run has left.

    Attributes:
        target: The model, or the program; "run" if unknown.
        layout: What the page shows of it.
        missing: Why that is not what its model wants to be shown; "" if it is.
        facts: Every number and text of its spec and of its result, by name.
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


def read_run(folder: Path) -> Run:
    """Return what is in an output folder.

    Raises:
        InputError: It is not an output folder, or a file in it cannot be read.
    """
    rank_dirs = [path for path in folder.glob("rank.*") if path.name[5:].isdecimal() and path.is_dir()]
    if not rank_dirs:
        raise InputError(f"{folder}: no output of a run: expected {folder}/rank.0/events.jsonl and the like")
    spec = _read(folder / "spec.json", Settings) or Settings()
    result = _read(folder / "result.json", Result) or Result()
    model = result.model or (spec.target if spec.options is not None else None)
    layout, missing = _layout(model)
    ranks = sorted((_rank(path, layout) for path in rank_dirs), key=lambda rank: rank.rank)
    counted = {"world_size": len(ranks), "num_hosts": len({rank.host for rank in ranks})}
    every = counted | (spec.options or {}) | (spec.model_extra or {}) | result.model_dump(exclude_none=True)
    facts = {name: value for name, value in every.items() if isinstance(value, str | int | float)}
    report = _read(folder / "report.json", Report) or _report(ranks)
    return Run(model or spec.target or "run", layout, missing, facts, result, report, ranks)


def _layout(model: str | None) -> tuple[ReportLayout, str]:
    """Return what the page shows of a model's run, and why that is not what the model wants to be shown."""
    if model is None:
        return ReportLayout(), ""
    try:
        return plugins.load_model(model).report, ""
    except PluginError as error:
        return ReportLayout(), f"the page shows no curves: {error}"


def _rank(folder: Path, layout: ReportLayout) -> RankRun:
    events, lost = _lines(folder / "events.jsonl", TypeAdapter(Event))
    series, also_lost = _lines(folder / layout.series, _NUMBERS) if layout.series else ([], [])
    failure = _read(folder / "failure.json", Failure)
    ended = next((event.exit_code for event in events if event.phase == "end"), None)
    records: list[Failure | Event] = [failure, *events] if failure else [*events]
    return RankRun(
        rank=int(folder.name[5:]),
        host=next((record.host for record in records if record.host), "?"),
        device=next((record.device for record in records if record.device), "?"),
        exit_code=failure.exit_code if failure else ended,
        series=series,
        events=events,
        failure=failure,
        warnings=[*lost, *also_lost, *_stragglers(int(folder.name[5:]), events), *_warnings(folder / "stderr")],
    )


def _stragglers(rank: int, events: Sequence[Event]) -> list[str]:
    """Return a line for each time at which the monitor found that this rank held up the others."""
    told = [Told.model_validate(event.model_dump()) for event in events if "straggler" in (event.model_extra or {})]
    return [Straggler(rank, one.host, one.factor, one.steps).line for one in told[:WARNINGS]]


def _report(ranks: Sequence[RankRun]) -> Report | None:
    """Return the verdict over the ranks' own failures, where the launcher has not lived to write `report.json`."""
    failures = sorted((rank.failure for rank in ranks if rank.failure), key=lambda failure: failure.time)
    if not failures:
        return None
    return Report.model_validate(judge(failures).as_json())


def _read(path: Path, model: type[M]) -> M | None:
    """Return what a file holds; None if there is none."""
    if not path.exists():
        return None
    try:
        return TypeAdapter(model).validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise InputError(f"{path}: cannot be read: {place + ': ' if place else ''}{problem['msg']}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _lines(path: Path, adapter: TypeAdapter[M]) -> tuple[list[M], list[str]]:
    """Return a file's lines, and a warning if some make no sense.

    A last line without an end is left out silently: it is still being written, or the rank was killed meanwhile.
    """
    if not path.exists():
        return [], []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    valid = []
    for line in lines:
        try:
            valid.append(adapter.validate_json(line))
        except ValidationError:
            continue
    lost = len(lines) - len(valid)
    return valid, [f"{path}: {lost} of {len(lines)} lines make no sense and are left out"] if lost else []


def _warnings(path: Path) -> list[str]:
    warnings: list[str] = []
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if any(level in line for level in _LEVELS):
                    warnings.append(line.rstrip())
                    if len(warnings) == WARNINGS:
                        break
    return warnings
