"""Whether and how a job has ended, read from its output folder."""

import json
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from socket import gethostname
from typing import Any

from pydantic import TypeAdapter

from unilaunch.errors import one_line
from unilaunch.folder.claim import is_held, read_marker
from unilaunch.folder.failure import Failure
from unilaunch.look.logs.layouts import read_events
from unilaunch.monitor.verdict import judge

#: Seconds from a verdict to the end of the last rank, at most: on several hosts, by Open MPI 4.
_ABORT = 8.0
#: Seconds for which no agent holds the folder of a job that has not ended: its agents were killed.
_LEFT = 4.0
_TAIL = 4096  # bytes at the end of events.jsonl that hold the last event


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
        return _adapter().validate_python(_json(path))
    return None


@cache
def _adapter() -> TypeAdapter[Failure]:
    return TypeAdapter(Failure)  # it takes 2 ms, and there is a file for each rank


def _json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
