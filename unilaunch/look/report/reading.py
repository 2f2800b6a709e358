"""Read the output folder of a run. Every file may be missing, since a run may have failed or may still run."""

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from unilaunch.errors import InputError, PluginError
from unilaunch.folder.failure import Failure
from unilaunch.folder.files import as_json, last_lines, refuse_unreadable
from unilaunch.interfaces import plugins
from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.look.report.run import LARGEST, Event, Figure, RankRun, Report, Result, Run, Settings, UsageRow
from unilaunch.monitor.stragglers import Straggler
from unilaunch.monitor.verdict import judge
from unilaunch.record import replace
from unilaunch.spec.task import LEFT_OUT, STARTED_IN

#: Log lines from WARNING up that are kept of a rank.
WARNINGS = 20
#: Last lines of each of a rank's streams.
LAST = 8
_LONGEST = 1 << 20  # letters of a line; a longer one is read in pieces
_LEVELS = (" WARNING ", " ERROR ", " CRITICAL ")
_NUMBERS = TypeAdapter(dict[str, Figure])

M = TypeVar("M")


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
