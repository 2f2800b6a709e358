"""Hashes of raw files, remembered: a file of 1.5 GB is read for its hash once, and not at each start."""

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from unilaunch.errors import InputError

#: Files that are remembered at most; the oldest entries go first.
_MOST = 1000
#: Nanoseconds that a file must be older than its hash: what is changed within a clock's tick keeps its time.
_SETTLED = 2_000_000_000


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal; read only if its path, size or times are new.

    Raises:
        InputError: There is no such file, or it cannot be read.
    """
    try:
        status = path.stat()
        seen = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        key, store = str(path.absolute()), _store()
        known = _read(store).get(key)
        if isinstance(known, list) and known[:-1] == seen:
            return str(known[-1])
        begin = time.time_ns()
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if max(seen[1:]) + _SETTLED < begin:
        _remember(store, key, [*seen, found])
    return found


def _store() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("unilaunch") / "hashes.json"


def _read(store: Path) -> dict[str, object]:
    with suppress(OSError, ValueError, RecursionError):
        known = json.loads(store.read_text(encoding="utf-8"))
        if isinstance(known, dict):
            return known
    return {}


def _remember(store: Path, key: str, entry: list[int | str]) -> None:
    """Add an entry; written aside and renamed. Where the cache folder cannot be written, nothing is remembered."""
    known = _read(store)
    known.pop(key, None)
    kept = dict([*known.items(), (key, entry)][-_MOST:])
    aside = store.with_name(f".{store.name}.{os.getpid()}")
    with suppress(OSError):
        store.parent.mkdir(parents=True, exist_ok=True)
        try:
            aside.write_text(json.dumps(kept), encoding="utf-8")
            aside.replace(store)
        finally:
            aside.unlink(missing_ok=True)
