"""Where the ranks' output lies: in our folder, in Open MPI 4's, and in Open MPI 5's files."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unilaunch.errors import InputError

_RANK = re.compile(r"rank\.(\d+)$")
_PRRTE = re.compile(r"\.(?P<job>prterun-.*@\d+)\.(?P<rank>\d+)\.(?P<stream>out|err)$")


@dataclass(frozen=True, slots=True)
class Stream:
    """One rank's standard output or standard error, in a file.

    Attributes:
        rank: Whose.
        name: "stdout" or "stderr".
        path: The file.
        host: Where the rank ran; "" if nothing says so.
        began: When it began, in seconds since 1970.
        times: The file that says when the output had which size, if there is one.
    """

    rank: int
    name: str
    path: Path
    host: str
    began: float
    times: Path | None


def find_streams(folder: Path) -> list[Stream]:
    """Return the streams of the job that *folder* is about, by rank.

    Raises:
        InputError: There are none.
    """
    found = [*_ours(folder)] or [*_of_open_mpi_4(folder)] or [*_of_open_mpi_5(folder)]
    if not found:
        raise InputError(
            f"{folder}: no output of ranks: expected {folder}/rank.N/stdout, or what mpirun --output-filename "
            f"{folder} writes"
        )
    return sorted(found, key=lambda stream: (stream.rank, stream.name))


def _ours(folder: Path) -> Iterator[Stream]:
    for rank_dir in folder.glob("rank.*"):
        if found := _RANK.search(rank_dir.name):
            host, began = _host_and_begin(rank_dir / "events.jsonl")
            for name in ("stdout", "stderr"):
                if (path := rank_dir / name).exists():
                    times = rank_dir / "times"
                    yield Stream(int(found[1]), name, path, host, began, times if times.exists() else None)


def _of_open_mpi_4(folder: Path) -> Iterator[Stream]:
    for path in folder.glob("*/rank.*/std*"):
        if (found := _RANK.search(path.parent.name)) and path.name in {"stdout", "stderr"}:
            yield Stream(int(found[1]), path.name, path, "", path.stat().st_mtime, None)


def _of_open_mpi_5(folder: Path) -> Iterator[Stream]:
    """Return the files of the newest job: each run leaves its own."""
    jobs: dict[str, list[tuple[Path, re.Match[str]]]] = {}
    for path in folder.parent.glob(f"{folder.name}.prterun-*"):
        if found := _PRRTE.search(path.name):
            jobs.setdefault(found["job"], []).append((path, found))
    newest = max(jobs.values(), key=lambda files: max(path.stat().st_mtime for path, _ in files), default=[])
    for path, found in newest:
        yield Stream(int(found["rank"]), f"std{found['stream']}", path, "", path.stat().st_mtime, None)


def _host_and_begin(events: Path) -> tuple[str, float]:
    host, began = "", 0.0
    for event in read_events(events):
        began = began or float(event.get("time", 0.0))
        if host := str(event.get("host", "")):
            break
    return host, began or (events.stat().st_mtime if events.exists() else 0.0)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Return the events of a rank; a line that is not whole is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def have_ended(folder: Path) -> bool:
    """Return whether every rank that has a folder has come to its end."""
    ranks = list(folder.glob("rank.*"))
    return bool(ranks) and all(
        (rank / "failure.json").exists()
        or any(event.get("phase") == "end" for event in read_events(rank / "events.jsonl"))
        for rank in ranks
    )


def first_failure(folder: Path) -> str:
    """Return the line on what failed first; "" if nothing did."""
    try:
        return str(json.loads((folder / "report.json").read_text(encoding="utf-8"))["verdict"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    failures = []
    for path in folder.glob("rank.*/failure.json"):
        try:
            failures.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    if not failures:
        return ""
    first = min(failures, key=lambda failure: float(failure["time"]))
    return f"rank {first['rank']} on {first['host']} failed first: {first['error']}: {first['message']}"
