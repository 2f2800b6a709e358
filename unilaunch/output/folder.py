"""The output folder: the only place that knows a file name in it."""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unilaunch.errors import InputError


class OutputFolder:
    """`OUTPUT_DIR/rank.N/{stdout,stderr,events.jsonl,failure.json}`, and `OUTPUT_DIR/{spec,result}.json` of rank 0.

    What an earlier run left under the same names is moved to `OUTPUT_DIR/previous/RUN_ID/`, never overwritten. Each
    rank moves its own folder, and rank 0 the files and the folders of ranks that this run does not have; so it needs
    no agreement, and works with and without a shared file system.
    """

    def __init__(self, root: Path, rank: int, size: int, run_id: str, *, resumes: bool = False) -> None:
        self.root = root
        self.resumes = resumes
        self.rank = rank
        self.run_id = run_id
        self.on_phase: Callable[..., None] = lambda **_: None
        self.rank_dir = rank_folder(root, rank, size)
        self._mine = {rank_folder(root, other, size).name for other in range(size)}

    @property
    def stdout(self) -> Path:
        """What this rank wrote to its standard output."""
        return self.rank_dir / "stdout"

    @property
    def stderr(self) -> Path:
        """What this rank wrote to its standard error, and its log."""
        return self.rank_dir / "stderr"

    @property
    def result(self) -> Path:
        """The result of the job, written by rank 0."""
        return self.root / "result.json"

    def open(self) -> None:
        """Move an earlier run's output away and make this rank's folder.

        Raises:
            InputError: The folder cannot be written.
        """
        try:
            if self.rank == 0:
                self._move_leftovers()
            if self.rank_dir.exists():
                _move(self.rank_dir, self.root / "previous" / _run_id(self.rank_dir))
            self.rank_dir.mkdir(parents=True)
            self.record(run=self.run_id)
        except OSError as error:
            raise InputError(
                f"--output-dir {self.root}: rank {self.rank} cannot write there: {error.strerror}: {error.filename}"
            ) from None

    def _move_leftovers(self) -> None:
        # Rank 0's old folder says whose the files are; the other ranks may have begun to make their new ones.
        zeros = [path for path in self.root.glob("rank.*") if not path.name.removeprefix("rank.").strip("0")]
        newest = max(zeros, key=lambda path: path.stat().st_mtime, default=None)
        run_id = _run_id(newest) if newest else "unknown"
        kept = () if self.resumes else (self.root / "checkpoints",)
        for path in (self.result, self.root / "spec.json", self.root / "report.json", *kept):
            if path.exists():
                _move(path, self.root / "previous" / run_id)
        for path in self.root.glob("rank.*"):
            if path.name not in self._mine:
                _move(path, self.root / "previous" / _run_id(path))

    def record(self, **event: Any) -> None:
        """Append one event to events.jsonl, with the time (seconds since 1970), in one write."""
        if "phase" in event:
            self.on_phase(phase=event["phase"])
        line = json.dumps({"time": time.time(), **event}, allow_nan=False) + "\n"
        descriptor = os.open(self.rank_dir / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def append_stderr(self, text: str) -> None:
        """Put *text* into this rank's standard error file, past the console."""
        with self.stderr.open("a", encoding="utf-8") as file:
            file.write(text)

    def write_spec(self, spec: Mapping[str, Any]) -> None:
        """Write what this run was told to do."""
        write_json(self.root / "spec.json", spec)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the job's result."""
        write_json(self.result, result)

    def write_value(self, value: Any) -> None:
        """Write what this rank's function returned."""
        write_json(self.rank_dir / "value.json", value)


def rank_folder(root: Path, rank: int, size: int) -> Path:
    """Return the folder of *rank*, its number padded with zeros as Open MPI does."""
    return root / f"rank.{rank:0{len(str(size - 1))}d}"


def keep_report(root: Path, rank: int, size: int, said: Mapping[str, Any]) -> None:
    """Write what a rank has told, if the rank itself could not write here: its host has another file system.

    Args:
        root: The output folder.
        rank: Who.
        size: Number of ranks.
        said: "run", and of "failure", "value" and "result" what there is.
    """
    folder = rank_folder(root, rank, size)
    if folder.exists() and _run_id(folder) == said["run"]:
        return
    told = {name: folder / f"{name}.json" for name in ("failure", "value")} | {"result": root / "result.json"}
    for path in (folder, told["result"]):
        if path.exists() and (path == folder or "result" in said):
            _move(path, root / "previous" / _run_id(folder))
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text(
        json.dumps({"run": said["run"], "host": said["host"]}) + "\n", encoding="utf-8"
    )
    for name, path in told.items():
        if name in said:
            write_json(path, said[name])


def write_json(path: Path, value: Any) -> None:
    """Write *value* to *path*, whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _run_id(rank_dir: Path) -> str:
    """Return the run that wrote *rank_dir*, as its first event says."""
    try:
        with (rank_dir / "events.jsonl").open(encoding="utf-8") as events:
            return Path(str(json.loads(events.readline())["run"])).name
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def _move(path: Path, folder: Path) -> None:
    """Move *path* into *folder* under a name that is free there; another rank may have moved it already."""
    folder.mkdir(parents=True, exist_ok=True)
    target, copy = folder / path.name, 1
    while target.exists():
        copy += 1
        target = folder / f"{path.name}~{copy}"
    try:
        path.rename(target)
    except FileNotFoundError:
        return
