"""Claim an output folder: the marker in every folder that a run makes, and the lock that a running job holds on it.

Each agent of a job holds a shared lock on the marker of the output folder. So the lock is released when the last agent
exits, however the job ends. A new job must first get an exclusive lock. On a file system without locks there is no
lock.
"""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from errno import EACCES, EAGAIN, EPERM
from pathlib import Path
from socket import gethostname
from stat import S_ISVTX, S_IWGRP, S_IWOTH

from unilaunch.folder.files import open_file, write_text
from unilaunch.record import Record, field, replace

MARKER = ".unilaunch"
_PATIENCE = 3.0  # seconds for the last agents of a job that has ended
_TICK = 0.1
_LARGEST = 1 << 16  # bytes of a marker


class Marker(Record):
    """The content of a marker.

    Attributes:
        run: The run that made the folder; for the output folder, the run that used it last.
        host: The host of the process that wrote the marker.
        process: The number of that process.
        since: When it was written, in seconds since 1970.
        files: The run that wrote each file beside the marker, by name; only for the output folder.
        made: Whether the run itself made the folder: only then may another run move it.
    """

    run: str = "unknown"
    host: str = "?"
    process: int = 0
    since: float = 0.0
    files: Mapping[str, str] = field(default_factory=dict)
    made: bool = False

    @classmethod
    def of(cls, run: str) -> "Marker":
        """Return the marker of this process."""
        return cls(run, gethostname(), os.getpid(), time.time())

    @property
    def text(self) -> str:
        """The marker as one line: if the file was longer before, the rest after this line is not read."""
        return json.dumps(vars(self)) + "\n"


def read_marker(folder: Path) -> Marker | None:
    """Return a folder's marker; None if it has none that this user or root wrote."""
    try:
        descriptor = open_file(folder / MARKER, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _read(descriptor) if _is_trusted(os.fstat(descriptor), folder) else None
    finally:
        os.close(descriptor)


def make_folder(path: Path, run: str) -> None:
    """Make a folder, with its marker.

    Raises:
        OSError: It cannot be made, or exists already.
    """
    path.mkdir(parents=True)
    with os.fdopen(open_file(path / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0) as file:
        file.write(replace(Marker.of(run), made=True).text.encode())


def claim(root: Path, run: str) -> int | Marker:
    """Return a descriptor that holds *root* for a run, or the marker of the other run that holds it.

    The first rank of every host calls this; on a shared file system these ranks find the claim of their own run.

    Raises:
        OSError: The marker cannot be written.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        descriptor = open_file(root / MARKER, os.O_RDWR | os.O_CREAT)
        if not _is_trusted(status := os.fstat(descriptor), root):
            os.close(descriptor)
            raise PermissionError(EPERM, f"its marker belongs to another user (uid {status.st_uid})", root / MARKER)
        if _lock(descriptor, fcntl.LOCK_EX) and _is_in_place(descriptor, root / MARKER):
            before = _read(descriptor)
            _write(descriptor, replace(Marker.of(run), files=before.files, made=before.made))
            # The lock may be lost for a moment while its kind changes, and `release` may have replaced the marker.
            if _lock(descriptor, fcntl.LOCK_SH) and _is_in_place(descriptor, root / MARKER):
                return descriptor
        holder = _read(descriptor)
        os.close(descriptor)
        if holder.run == run:
            return hold(root)
        if time.monotonic() > deadline:
            return holder
        time.sleep(_TICK)


def hold(root: Path) -> int:
    """Return another descriptor that holds *root*, which this run has claimed.

    Raises:
        OSError: The marker cannot be opened.
    """
    descriptor = open_file(root / MARKER, os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + _PATIENCE
    while not _lock(descriptor, fcntl.LOCK_SH) and time.monotonic() < deadline:
        time.sleep(_TICK)  # `is_held` of another process locks it for a moment
    return descriptor


def is_held(root: Path) -> bool:
    """Return whether a job uses *root* now; False if the file system has no locks."""
    for access in (os.O_RDWR, os.O_RDONLY):  # NFS has no exclusive lock without access to write
        with suppress(OSError):
            descriptor = open_file(root / MARKER, access)
            try:
                return not _lock(descriptor, fcntl.LOCK_EX)
            finally:
                os.close(descriptor)
    return False


def release(root: Path, run: str) -> None:
    """Release a folder whose job has ended: after the loss of a host, a file server may keep its lock for minutes."""
    with suppress(OSError), os.fdopen(open_file(root / MARKER, os.O_RDWR), "r+b", buffering=0) as file:
        marker = _read(file.fileno())
        held = marker.run == run and not _lock(file.fileno(), fcntl.LOCK_EX)
        if held and _read(file.fileno()) == marker:
            write_text(root / MARKER, marker.text)  # a new file, which has no lock


def note_files(root: Path, files: Mapping[str, str]) -> None:
    """Record which files in *root* runs have written; the marker is locked, so it is changed in place.

    Args:
        root: The output folder.
        files: The run that wrote each file, by name.

    Raises:
        OSError: The marker cannot be written.
    """
    with os.fdopen(open_file(root / MARKER, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as file:
        _write(file.fileno(), replace(_read(file.fileno()), files=dict(files)))


def foreign_owner(folder: Path) -> int | None:
    """Return the owner of *folder*, or of a link of that name, if it is neither this user nor root; else None."""
    if not _is_trusted(status := folder.stat(), folder):
        return status.st_uid
    if folder.is_symlink() and not _is_trusted(status := folder.lstat(), folder.parent):
        return status.st_uid
    return None


def open_to_others(folder: Path) -> Path | None:
    """Return a parent folder of *folder* in which another user could replace it; None if there is none."""
    for above in (*folder.parents, *folder.resolve().parents):
        status = above.stat()
        writable = status.st_mode & (S_IWGRP | S_IWOTH) and not status.st_mode & S_ISVTX
        if writable or foreign_owner(above) is not None:
            return above
    return None


def is_ours(folder: Path, run_id: str | None = None) -> bool:
    """Return whether a run made a folder; if *run_id* is given, whether that run made it."""
    marker = None if folder.is_symlink() else read_marker(folder)
    if marker is None:
        return False
    if run_id is not None:
        return marker.run == run_id
    return marker.made or [path.name for path in folder.iterdir()] == [MARKER]  # a run may have been killed there


def is_free(folder: Path) -> bool:
    """Return whether the path does not exist or is an empty folder: a run may have been killed while it made it."""
    if not os.path.lexists(folder):
        return True
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


def _is_trusted(status: os.stat_result, folder: Path) -> bool:
    """Return whether root, this user, or the user that a file server makes of this user owns what is in *folder*."""
    return status.st_uid in {0, os.geteuid()} or status.st_uid == _owner_of_new_file(folder)


def _owner_of_new_file(folder: Path) -> int | None:
    """Return who owns a file that this user makes in *folder*; None if that is not possible.

    NFS with all_squash or root_squash, and AWS EFS, give it another owner; a folder of another user does not.
    """
    from tempfile import TemporaryFile

    with suppress(OSError), TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid
    return None


def _lock(descriptor: int, kind: int) -> bool:
    """Return False if another process has a conflicting lock; True also on a file system without locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in {EACCES, EAGAIN}
    return True


def _is_in_place(descriptor: int, path: Path) -> bool:
    """Return whether the file has not been replaced since it was opened."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def _read(descriptor: int) -> Marker:
    """Return the content of a marker; an incomplete one gives an empty marker."""
    try:
        said = json.loads(os.pread(descriptor, _LARGEST, 0).partition(b"\n")[0])
        files = {str(name): str(run) for name, run in said["files"].items()}
        since = float(said["since"])
        time.localtime(since)  # a refusal shows it
        return Marker(
            str(said["run"]), str(said["host"]), int(said["process"]), since, files, made=said.get("made") is True
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError, RecursionError):
        return Marker()


def _write(descriptor: int, marker: Marker) -> None:
    text = marker.text.encode()
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))
