"""What a run has left in its folder: all that is there, and nothing that must be."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unilaunch.errors import InputError

#: Lines of warnings that are shown.
WARNINGS = 20
_LEVELS = (" WARNING ", " ERROR ", " CRITICAL ")


@dataclass(frozen=True, slots=True)
class RankRun:
    """What one rank has left.

    Attributes:
        rank: Which.
        host: Where it ran; "?" if it did not say.
        device: On what.
        exit_code: How it ended; None if it has not, or could not say.
        epochs: Each epoch's figures.
        evaluations: Its events that hold accuracies.
        warnings: Lines of its log from WARNING up.
    """

    rank: int
    host: str
    device: str
    exit_code: int | None
    epochs: Sequence[Mapping[str, Any]] = field(default_factory=list)
    evaluations: Sequence[Mapping[str, Any]] = field(default_factory=list)
    warnings: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run has left.

    Attributes:
        folder: Where.
        spec: What it was told to do; empty if it did not come so far.
        result: Its result; empty for a program, and of a run that failed or goes on.
        report: How it failed; empty if it did not.
        ranks: By rank.
    """

    folder: Path
    spec: Mapping[str, Any]
    result: Mapping[str, Any]
    report: Mapping[str, Any]
    ranks: list[RankRun]


def read_run(folder: Path) -> Run:
    """Return what is in an output folder.

    Raises:
        InputError: It is none, or a file in it cannot be read.
    """
    rank_dirs = sorted(
        (path for path in folder.glob("rank.*") if path.name[5:].isdecimal()), key=lambda path: path.name
    )
    if not rank_dirs:
        raise InputError(f"{folder}: no output of a run: expected {folder}/rank.0/events.jsonl and the like")
    one = {name: _json(folder / f"{name}.json") for name in ("spec", "result", "report")}
    return Run(folder, one["spec"], one["result"], one["report"], [_rank(path) for path in rank_dirs])


def _rank(folder: Path) -> RankRun:
    events = _lines(folder / "events.jsonl")
    failure = _json(folder / "failure.json")
    prepared: Mapping[str, Any] = next((event for event in events if event.get("phase") == "prepare"), {})
    ended = next((event["exit_code"] for event in events if event.get("phase") == "end"), None)
    return RankRun(
        rank=int(folder.name[5:]),
        host=str(failure.get("host") or prepared.get("host", "?")),
        device=str(failure.get("device") or prepared.get("device", "?")),
        exit_code=failure.get("exit_code", ended),
        epochs=_lines(folder / "epochs.jsonl"),
        evaluations=[event for event in events if "val_accuracy" in event],
        warnings=_warnings(folder / "stderr"),
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected an object, found {type(found).__name__}")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return a file's JSON lines; one that is not whole is left out, since the run may have been killed in it."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            found.append(value)
    return [value for value in found if isinstance(value, dict)]


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
