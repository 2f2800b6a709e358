"""What a run has left in its folder: all that is there, and nothing that must be."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from unilaunch.errors import InputError
from unilaunch.monitor.verdict import judge
from unilaunch.output.failure import Failure

#: Lines of warnings that are kept of a rank.
WARNINGS = 20
_LEVELS = (" WARNING ", " ERROR ", " CRITICAL ")

M = TypeVar("M")


class Epoch(BaseModel):
    """A line of `epochs.jsonl`: seconds of the epoch, of which communication, and halo bytes received."""

    epoch: int
    loss: float
    seconds: float
    communication: float
    bytes: int


class Event(BaseModel):
    """A line of `events.jsonl`, or an evaluation of `result.json`: of each kind what the page shows."""

    phase: str | None = None
    host: str | None = None
    device: str | None = None
    exit_code: int | None = None
    epoch: int | None = None
    loss: float | None = None
    train_accuracy: float | None = None
    val_accuracy: float | None = None
    test_accuracy: float | None = None


class Part(BaseModel):
    """What a rank says of itself in `result.json`: owned and halo nodes, and what they cost."""

    owned: int | None = None
    halo: int | None = None
    bytes_per_epoch: int | None = None
    peak_memory_bytes: int | None = None


class Result(BaseModel):
    """`result.json`; its single values are `extra`."""

    model_config = ConfigDict(extra="allow")
    loss: list[float] = []
    evaluations: list[Event] = []
    ranks: list[Part] = []
    versions: dict[str, str] = {}


class Group(BaseModel):
    """Ranks of which the same can be said."""

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
    """`spec.json`; its single values are `extra`."""

    model_config = ConfigDict(extra="allow")
    options: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class RankRun:
    """What one rank has left.

    Attributes:
        rank: Which.
        host: Where it ran; "?" if it did not say.
        device: On what; "?" if it did not say.
        exit_code: How it ended; None if it has not, or could not say.
        epochs: Each epoch's figures.
        events: What it noted.
        failure: How it failed; None if it did not.
        warnings: Lines of its log from WARNING up.
    """

    rank: int
    host: str
    device: str
    exit_code: int | None
    epochs: Sequence[Epoch] = field(default_factory=list)
    events: Sequence[Event] = field(default_factory=list)
    failure: Failure | None = None
    warnings: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run has left.

    Attributes:
        target: The model, or the program; "run" if unknown.
        facts: Every single value of its spec and of its result, by name.
        result: Its result; empty for a program, and of a run that failed or goes on.
        report: How it failed; None if it did not.
        ranks: In their order.
    """

    target: str
    facts: dict[str, str | int | float]
    result: Result
    report: Report | None
    ranks: list[RankRun]


def read_run(folder: Path) -> Run:
    """Return what is in an output folder.

    Raises:
        InputError: It is none, or a file in it cannot be read.
    """
    rank_dirs = [path for path in folder.glob("rank.*") if path.name[5:].isdecimal() and path.is_dir()]
    if not rank_dirs:
        raise InputError(f"{folder}: no output of a run: expected {folder}/rank.0/events.jsonl and the like")
    spec = _read(folder / "spec.json", Settings) or Settings()
    result = _read(folder / "result.json", Result) or Result()
    ranks = sorted((_rank(path) for path in rank_dirs), key=lambda rank: rank.rank)
    seen = {"world_size": len(ranks), "num_hosts": len({rank.host for rank in ranks})}
    said = seen | spec.options | (spec.model_extra or {}) | (result.model_extra or {})
    facts = {name: value for name, value in said.items() if isinstance(value, str | int | float)}
    report = _read(folder / "report.json", Report) or _report(ranks)
    return Run(str(facts.get("model") or facts.get("target") or "run"), facts, result, report, ranks)


def _rank(folder: Path) -> RankRun:
    events, lost = _lines(folder / "events.jsonl", Event)
    epochs, also_lost = _lines(folder / "epochs.jsonl", Epoch)
    failure = _read(folder / "failure.json", Failure)
    ended = next((event.exit_code for event in events if event.phase == "end"), None)
    told: list[Failure | Event] = [failure, *events] if failure else [*events]
    return RankRun(
        rank=int(folder.name[5:]),
        host=next((one.host for one in told if one.host), "?"),
        device=next((one.device for one in told if one.device), "?"),
        exit_code=failure.exit_code if failure else ended,
        epochs=epochs,
        events=events,
        failure=failure,
        warnings=[*lost, *also_lost, *_warnings(folder / "stderr")],
    )


def _report(ranks: Sequence[RankRun]) -> Report | None:
    """Return the verdict over the ranks' own records: who writes one for the job has not come to it."""
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


def _lines(path: Path, model: type[M]) -> tuple[list[M], list[str]]:
    """Return a file's lines, and a warning if some make no sense.

    A last line that is not whole is none of these: it is still being written, or the rank was killed in it.
    """
    if not path.exists():
        return [], []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    found, adapter = [], TypeAdapter(model)
    for line in lines:
        try:
            found.append(adapter.validate_json(line))
        except ValidationError:
            continue
    lost = len(lines) - len(found)
    return found, [f"{path}: {lost} of {len(lines)} lines make no sense and are left out"] if lost else []


def _warnings(path: Path) -> list[str]:
    found: list[str] = []
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if any(level in line for level in _LEVELS):
                    found.append(line.rstrip())
                    if len(found) == WARNINGS:
                        break
    return found
