"""A cache of files' hashes: a file of 1.5 GB is hashed once, and not at each start.

Each entry is a file of its own, so that ranks that begin at once do not overwrite each other's.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from unilaunch.errors import InputError

#: Entries that are remembered at most; the oldest go first.
_MOST = 1000
#: Lines of an entry: the state of the files, and the text.
_LINES = 2
#: Nanoseconds that a file must be older than its hash: a change within one tick of the clock keeps the time.
_SETTLED = 2_000_000_000


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal; read only if its path, size or times are new.

    Raises:
        InputError: There is no such file, or it cannot be read.
    """
    return remember(path, [path], lambda: read_hash(path))


def read_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal; the file is read.

    Raises:
        InputError: There is no such file, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def remember(name: Path, files: Iterable[Path], read: Callable[[], str]) -> str:
    """Return what *read* returns; called only if *name*, or the names, sizes, times or inodes of the files are new.

    Args:
        name: Under which the text is remembered.
        files: What the text depends on.
        read: Reads the files.

    Raises:
        InputError: A file is not there.
    """
    state, newest = _state(files)
    entry = _folder() / hashlib.sha256(os.fsencode(name.absolute())).hexdigest()
    known = _read(entry)
    if len(known) == _LINES and known[0] == state:
        return known[1]
    begin = time.time_ns()
    found = read()
    if newest + _SETTLED < begin:
        _remember(entry, f"{state}\n{found}\n")
    return found


def stamp(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is written to or replaced: its size, times and inode; None: it is not there."""
    with suppress(OSError):
        one = path.stat()
        return one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino
    return None


def _state(files: Iterable[Path]) -> tuple[str, int]:
    """Return a text that another state of the files has not, and the newest of their times in nanoseconds."""
    states, newest = hashlib.sha256(), 0
    for path in files:
        try:
            one = path.stat()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        states.update(repr((path.name, one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino)).encode())
        newest = max(newest, one.st_mtime_ns, one.st_ctime_ns)
    return states.hexdigest(), newest


def _folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("unilaunch") / "hashes"


def _read(entry: Path) -> list[str]:
    with suppress(OSError, ValueError):
        return entry.read_text(encoding="ascii").splitlines()
    return []


def _remember(entry: Path, text: str) -> None:
    """Write an entry aside and rename it. Where the cache folder cannot be written, nothing is remembered."""
    with suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        entries = sorted(entry.parent.iterdir(), key=lambda one: one.stat().st_mtime_ns)
        for oldest in entries[: max(0, len(entries) - _MOST + 1)]:
            oldest.unlink(missing_ok=True)
        with NamedTemporaryFile("w", dir=entry.parent, prefix=".", delete=False) as aside:
            aside.write(text)
        Path(aside.name).replace(entry)
