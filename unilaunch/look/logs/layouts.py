"""Find the ranks' output: in our folder, in Open MPI 4's, or in Open MPI 5's files."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unilaunch.record import Record

_RANK = re.compile(r"rank\.(\d+)")
#: The folder of a job in Open MPI's tree: "1", and in that of `--output dir=` "prterun-host-1234@1".
_JOB = re.compile(r"\d+|(?P<job>prterun-.+)@\d+")
_FILE = re.compile(r"\.(?P<job>prterun-.+)@\d+\.(?P<rank>\d+)\.(?P<name>out|err)")
_NAMES = ("stdout", "stderr")


class Stream(Record):
    """One rank's standard output or standard error, in a file.

    Attributes:
        rank: Which rank's.
        name: "stdout" or "stderr".
        path: The file.
        host: Where the rank ran; "" if unknown.
        began: When it began, in seconds since 1970; 0 if unknown.
        times: The file that says when the output had which size, if this layout has one; it may be made later.
    """

    rank: int
    name: str
    path: Path
    host: str
    began: float
    times: Path | None


def find_streams(folder: Path) -> list[Stream]:
    """Return the streams of the job in *folder*, by rank; ours, if Open MPI kept the same output too."""
    found = [*_ours(folder)] or [*_of_a_tree(folder)] or [*_of_files_beside(folder)]
    return sorted(found, key=lambda stream: (stream.rank, stream.name))


def _ours(folder: Path) -> Iterator[Stream]:
    """Return the streams in DIR/rank.N: ours, or Open MPI 4's with `DIR:nojobid`, which has no events and no times."""
    for rank_dir in folder.glob("rank.*"):
        if found := _RANK.fullmatch(rank_dir.name):
            host, began = _host_and_begin(rank_dir / "events.jsonl")
            for name in _NAMES:
                if (path := rank_dir / name).is_file():
                    yield Stream(int(found[1]), name, path, host, began, rank_dir / "times")


def _of_a_tree(folder: Path) -> Iterator[Stream]:
    jobs: dict[str, list[Stream]] = {}
    for path in folder.glob("*/rank.*/std*"):
        job, rank = _JOB.fullmatch(path.parent.parent.name), _RANK.fullmatch(path.parent.name)
        if job and rank and path.name in _NAMES:
            stream = Stream(int(rank[1]), path.name, path, "", 0.0, None)
            jobs.setdefault(job["job"] or "", []).append(stream)
    yield from _newest(jobs)


def _of_files_beside(folder: Path) -> Iterator[Stream]:
    jobs: dict[str, list[Stream]] = {}
    for path in folder.parent.glob("*.prterun-*"):
        if path.name.startswith(folder.name) and (found := _FILE.fullmatch(path.name[len(folder.name) :])):
            stream = Stream(int(found["rank"]), f"std{found['name']}", path, "", 0.0, None)
            jobs.setdefault(found["job"], []).append(stream)
    yield from _newest(jobs)


def _newest(jobs: dict[str, list[Stream]]) -> list[Stream]:
    """Return the newest job's streams: Open MPI 5 leaves the files of each run beside those of earlier ones."""
    return max(jobs.values(), key=lambda streams: max(stream.path.stat().st_mtime for stream in streams), default=[])


def _host_and_begin(events: Path) -> tuple[str, float]:
    host, began = "", 0.0
    for event in read_events(events):
        time = event.get("time")
        if not began and isinstance(time, (int, float)) and 0 < time < 1e11:  # noqa: PLR2004  (a plausible time)
            began = float(time)
        if host := str(event.get("host", "")):
            break
    return host, began


def read_events(path: Path, tail: int | None = None) -> Iterator[dict[str, Any]]:
    """Return the events of a rank, or those in the last *tail* bytes; an incomplete line is left out."""
    try:
        with path.open("rb") as file:
            if tail is not None:
                file.seek(max(0, path.stat().st_size - tail))
            for line in file:
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(event, dict):
                    yield event
    except OSError:
        return
