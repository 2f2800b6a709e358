"""The output folder: only this module knows the names of the files in it."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unilaunch.errors import InputError, say
from unilaunch.folder.claim import (
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
from unilaunch.folder.files import append, event_line, move_aside, write_json
from unilaunch.record import Record
from unilaunch.spec.redaction import redact_fields
from unilaunch.spec.task import LEFT_OUT, STARTED_IN

SPEC_FILE, RESULT, REPORT = "spec.json", "result.json", "report.json"
#: The socket on which the monitor of a running job listens for the job's owner.
SOCKET = ".monitor"


class Use(Record):
    """How a run uses its output folder.

    Attributes:
        shown: The folder as the user named it; None if that is its path.
        claims: Whether this rank claims the folder for its host.
        foreign: Whether rank 0, on another host, chose the folder's path.
        files: The files that rank 0 will write beside the ranks' folders.
        resumes: Whether the run continues from the checkpoints of an earlier run.
    """

    shown: Path | None = None
    claims: bool = True
    foreign: bool = False
    files: Sequence[str] = (SPEC_FILE, RESULT)
    resumes: bool = False


class OutputFolder:
    """`OUTPUT_DIR/rank.N/{stdout,stderr,events.jsonl,failure.json}`, and `OUTPUT_DIR/{spec,result}.json` of rank 0.

    Files of an earlier run with the same names are moved to `OUTPUT_DIR/previous/RUN_ID/`, never overwritten. Files
    that no run has made are never moved. First every rank calls `claim`, which moves nothing. When all ranks have
    succeeded, every rank calls `open`. Each rank moves its own folder; rank 0 moves the files, and the folders of ranks
    that this run does not have. So this works with and without a shared file system.
    """

    def __init__(self, root: Path, rank: int, size: int, run_id: str, use: Use | None = None) -> None:
        use = use or Use()
        self.root: Path = root.absolute()  # a program may change the current folder
        self.shown: Path = use.shown or root
        self.rank = rank
        self.run_id = run_id
        self.on_phase: Callable[..., None] = lambda **_: None
        self.rank_dir: Path = rank_folder(self.root, rank, size)
        self.lock: int = -1
        self._use = use
        self._files = use.files if rank == 0 else ()
        # Only for rank 0: with all names in each rank, the total size would grow with the square of the world size.
        self._ranks = {rank_folder(root, other, size).name for other in range(size if rank == 0 else 0)}
        self._lost = False

    @property
    def stderr(self) -> Path:
        """The file with this rank's standard error, and its log."""
        return self.rank_dir / "stderr"

    @property
    def result(self) -> Path:
        """The file with the job's result; rank 0 writes it."""
        return self.root / RESULT

    @property
    def checkpoints(self) -> Path:
        """The folder of a model's checkpoints, if the user names no other one."""
        return self.root / "checkpoints"

    def claim(self) -> None:
        """Make sure that this run may use the folder: no other run uses it, and no file of the user has a needed name.

        Raises:
            InputError: This run may not use it, or the folder cannot be written.
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
        """Release the lock: other runs may use the folder."""
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
        """Append *text* to this rank's standard error file, without showing it on the console."""
        with self._losing():
            append(self.stderr, text)

    def write_spec(self, spec: Mapping[str, Any]) -> None:
        """Write the spec of this run without secret values, and where it was started."""
        shown = redact_fields(spec)
        left_out = {LEFT_OUT: True} if shown["args"] != spec["args"] else {}
        with self._losing():
            write_json(self.root / SPEC_FILE, shown | left_out | {STARTED_IN: str(Path.cwd())})

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the job's result."""
        with self._losing():
            write_json(self.result, result)

    def write_value(self, value: Any) -> None:
        """Write the value of this rank's function."""
        with self._losing():
            write_json(self.rank_dir / "value.json", value)

    def make_checkpoints(self, instead: str = "choose another --output-dir") -> Path:
        """Return the folder of the checkpoints; make it if it does not exist.

        Args:
            instead: What the user can do if another file has its name.

        Raises:
            InputError: No run has made the existing folder, or it cannot be made.
        """
        with self._refusing():
            if is_free(self.checkpoints):
                make_folder(self.checkpoints, self.run_id)
            elif not is_ours(self.checkpoints):
                raise self._in_the_way(self.checkpoints.name, instead)
        return self.checkpoints

    def _take(self) -> None:
        """Claim the folder, or raise an error that names the run that uses it."""
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
        """Raise an error for a folder in which another user could make a link to a file of this user."""
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
        for name, run in self._marker().files.items():
            if name == _name(name):
                move_aside(self.root / name, self.root / "previous" / _name(run))
        for path in self.root.glob("rank.*"):
            if path.name not in self._ranks and is_ours(path):
                self._move(path)
        if not self._use.resumes and is_ours(self.checkpoints):
            self._move(self.checkpoints)
        note_files(self.root, dict.fromkeys(self._files, self.run_id))

    def _move(self, path: Path) -> None:
        """Move a folder of an earlier run aside."""
        move_aside(path, self.root / "previous" / _name((read_marker(path) or Marker()).run))

    def _marker(self) -> Marker:
        return read_marker(self.root) or Marker()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raise an InputError with the reason if the block cannot write the folder."""
        try:
            yield
        except OSError as error:
            why = f"{error.strerror}: {error.filename or self.rank_dir}"
            raise InputError(f"--output-dir {self.shown}: rank {self.rank} cannot write there: {why}") from None

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Ignore a record that cannot be written, and show that once: the job must not fail for that reason."""
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


def _name(run_id: str) -> str:
    """Return a run's name as a folder's name."""
    name = Path(run_id).name
    return "unknown" if name in {"", ".."} else name
