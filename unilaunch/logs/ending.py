"""Whether and how a job has ended, read from its output folder."""

import json
import time
from pathlib import Path
from typing import Any

from unilaunch.logs.layouts import read_events

#: Seconds from a verdict to the end of the last rank, at most: on several hosts, by Open MPI 4.
_ABORT = 8.0
_TAIL = 4096  # bytes at the end of events.jsonl that hold the last event


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
        or any(event.get("phase") == "end" for event in read_events(rank / "events.jsonl", _TAIL))
        or any("peak" in used for used in read_events(rank / "usage.jsonl", _TAIL))
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
    first = report.get("first")
    if "verdict" in report:
        return f"{report['verdict']}{_log(first if isinstance(first, dict) else {})}"
    failures = [_json(path) for path in folder.glob("rank.*/failure.json")]
    first = min((failure for failure in failures if failure), key=_time, default=None)
    if not first:
        return ""
    who = f"rank {first.get('rank', '?')} on {first.get('host', '?')}"
    return f"{who} failed first: {first.get('error')}: {' '.join(str(first.get('message')).split())}{_log(first)}"


def _log(failure: dict[str, Any]) -> str:
    return f"; its log is {failure['log']}" if failure.get("log") else ""


def _time(failure: dict[str, Any]) -> float:
    time = failure.get("time")
    return float(time) if isinstance(time, (int, float)) else float("inf")


def _json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
