"""The output folder: the only place that knows a file name in it."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unilaunch.errors import InputError, say
from unilaunch.output.claim import (
    Marker,
    claim,
    foreign_owner,
    hold,
    is_free,
    is_ours,
    make_folder,
    note_files,
    open_to_others,
    read_marker,
)
from unilaunch.output.files import append, move_aside, write_json

SPEC, RESULT, REPORT = "spec.json", "result.json", "report.json"
#: Where the monitor of a running job listens for its owner.
SOCKET = ".monitor"


@dataclass(frozen=True, slots=True)
class Use:
    """How a run uses its output folder.

    Attributes:
        shown: The folder as the user named it; None if that is its path.
        claims: This rank claims the folder for its host.
        foreign: Rank 0 named the folder, on another host.
        files: Those that rank 0 will write beside the ranks' folders.
        resumes: The run goes on from the checkpoints that an earlier one left.
    """

    shown: Path | None = None
    claims: bool = True
    foreign: bool = False
    files: Sequence[str] = (SPEC, RESULT)
    resumes: bool = False


class OutputFolder:
    """`OUTPUT_DIR/rank.N/{stdout,stderr,events.jsonl,failure.json}`, and `OUTPUT_DIR/{spec,result}.json` of rank 0.

    What an earlier run left under the same names is moved to `OUTPUT_DIR/previous/RUN_ID/`, never overwritten; what is
    not a run's is never moved. First every rank calls `claim`, which moves nothing, and when all could, `open`. Each
    rank moves its own folder, and rank 0 the files and the folders of ranks that this run does not have; so it works
    with and without a shared file system.

    Args:
        root: The output folder.
        rank: Whose this is.
        size: Number of ranks.
        run_id: The run.
        use: How the run uses the folder.
    """

    def __init__(self, root: Path, rank: int, size: int, run_id: str, use: Use | None = None) -> None:
        use = use or Use()
        self.root = root.absolute()  # a program may change the current folder
        self.shown = use.shown or root
        self.rank = rank
        self.run_id = run_id
        self.on_phase: Callable[..., None] = lambda **_: None
        self.rank_dir = rank_folder(self.root, rank, size)
        self.lock = -1
        self._use = use
        self._files = use.files if rank == 0 else ()
        # Only rank 0 asks: with all names in each rank, the reports of all ranks would take the square of their number.
        self._ranks = {rank_folder(root, other, size).name for other in range(size if rank == 0 else 0)}
        self._lost = False

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
        return self.root / RESULT

    @property
    def checkpoints(self) -> Path:
        """Where a model keeps its checkpoints, if the user names no other folder."""
        return self.root / "checkpoints"

    def claim(self) -> None:
        """Make sure that this run may have the folder: no other run is in it, and no file of the user in its way.

        Raises:
            InputError: It may not, or the folder cannot be written.
        """
        with self._refusing():
            if self._use.claims:
                self.root.mkdir(parents=True, exist_ok=True)
            if self.root.exists():
                self._refuse_strangers()
            if self._use.claims:
                self._take()
            taken = [] if is_free(self.rank_dir) or is_ours(self.rank_dir) else [self.rank_dir.name]
            ours = self._marker().files
            taken += [name for name in self._files if name not in ours and os.path.lexists(self.root / name)]
            if taken:
                self.let_go()
                raise self._in_the_way(taken[0])

    def open(self) -> None:
        """Move an earlier run's output away and make this rank's folder.

        Raises:
            InputError: The folder cannot be written.
        """
        with self._refusing():
            self.root.mkdir(parents=True, exist_ok=True)
            self._refuse_strangers()
            if self.rank == 0:
                self._move_leftovers()
            if is_ours(self.rank_dir):
                self._move(self.rank_dir)
            elif os.path.lexists(self.rank_dir):
                self.rank_dir.rmdir()  # it is empty
            make_folder(self.rank_dir, self.run_id)
            append(self.rank_dir / "events.jsonl", event_line(run=self.run_id))
            if self.lock < 0:
                self.lock = hold(self.root)

    def let_go(self) -> None:
        """Let other runs have the folder."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def record(self, **event: Any) -> None:
        """Append one event to events.jsonl, with the time (seconds since 1970), in one write."""
        if "phase" in event:
            self.on_phase(phase=event["phase"])
        with self._losing():
            append(self.rank_dir / "events.jsonl", event_line(**event))

    def append_stderr(self, text: str) -> None:
        """Put *text* into this rank's standard error file, past the console."""
        with self._losing():
            append(self.stderr, text)

    def write_spec(self, spec: Mapping[str, Any]) -> None:
        """Write what this run was told to do."""
        with self._losing():
            write_json(self.root / SPEC, spec)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the job's result."""
        with self._losing():
            write_json(self.result, result)

    def write_value(self, value: Any) -> None:
        """Write what this rank's function returned."""
        with self._losing():
            write_json(self.rank_dir / "value.json", value)

    def make_checkpoints(self, instead: str = "choose another --output-dir") -> Path:
        """Return the folder of the checkpoints, which is made if it is not there.

        Args:
            instead: What the user can do if a file has its name.

        Raises:
            InputError: There is one that is not a run's, or it cannot be made.
        """
        with self._refusing():
            if is_free(self.checkpoints):
                make_folder(self.checkpoints, self.run_id)
            elif not is_ours(self.checkpoints):
                raise self._in_the_way(self.checkpoints.name, instead)
        return self.checkpoints

    def _take(self) -> None:
        """Claim the folder, or refuse it by naming the run that is in it."""
        found = claim(self.root, self.run_id)
        if isinstance(found, int):
            self.lock = found
            return
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.since))
        raise InputError(
            f"--output-dir {self.shown}: run {found.run} is writing there (process {found.process} on {found.host}, "
            f"since {since}): wait for its end, or choose another --output-dir, as --output-dir '{self.shown}/{{job}}'"
        )

    def _refuse_strangers(self) -> None:
        """Refuse a folder in which another user could make a link to a file of this one."""
        owner = foreign_owner(self.root)
        if owner is not None:
            raise InputError(
                f"--output-dir {self.shown}: it belongs to another user (uid {owner}): choose another --output-dir"
            )
        if self._use.foreign and (above := open_to_others(self.root)):
            raise InputError(
                f"--output-dir {self.shown}: on this host rank 0's {self.root} is in {above}, where other users can "
                "write: start all ranks in a folder of yours that every host has, or choose another --output-dir"
            )

    def _in_the_way(self, name: str, instead: str = "choose another --output-dir") -> InputError:
        where = f"--output-dir {self.shown}"
        return InputError(f"{where}: {name} is there, and unilaunch did not make it: move it away, or {instead}")

    def _move_leftovers(self) -> None:
        files = self._marker().files
        for name in {SPEC, RESULT, REPORT} & set(files):
            move_aside(self.root / name, self.root / "previous" / _name(files[name]))
        for path in self.root.glob("rank.*"):
            if path.name not in self._ranks and is_ours(path):
                self._move(path)
        if not self._use.resumes and is_ours(self.checkpoints):
            self._move(self.checkpoints)
        note_files(self.root, dict.fromkeys(self._files, self.run_id))

    def _move(self, path: Path) -> None:
        """Move a folder of ours aside."""
        move_aside(path, self.root / "previous" / _name((read_marker(path) or Marker()).run))

    def _marker(self) -> Marker:
        return read_marker(self.root) or Marker()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Refuse a folder that cannot be written, with the reason."""
        try:
            yield
        except OSError as error:
            why = f"{error.strerror}: {error.filename or self.rank_dir}"
            raise InputError(f"--output-dir {self.shown}: rank {self.rank} cannot write there: {why}") from None

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Do without a record that cannot be written, and say so once: it is no reason for a job to fail."""
        try:
            yield
        except (OSError, ValueError) as error:
            if not self._lost:
                self._lost = True
                where, why = self.shown / self.rank_dir.name, getattr(error, "strerror", None) or error
                say(f"{where}: rank {self.rank} can no longer write its records: {why}; the job goes on")


def rank_folder(root: Path, rank: int, size: int) -> Path:
    """Return the folder of *rank*, its number padded with zeros as Open MPI does."""
    return root / f"rank.{rank:0{len(str(size - 1))}d}"


def event_line(**event: Any) -> str:
    """Return a line of `events.jsonl`: the event, with the time in seconds since 1970."""
    return json.dumps({"time": time.time(), **event}, allow_nan=False) + "\n"


def _name(run_id: str) -> str:
    """Return a run's name as that of a folder."""
    name = Path(run_id).name
    return "unknown" if name in {"", ".."} else name
