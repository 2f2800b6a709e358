"""Files in a run's folders: a link is never followed, and JSON is written whole or not at all."""

import json
import os
from contextlib import suppress
from dataclasses import asdict
from errno import EINVAL
from pathlib import Path
from typing import Any

from unilaunch.output.failure import Failure

_TAIL = 8192  # bytes of a log's end that are looked at for its last lines


def open_file(path: str | Path, flags: int) -> int:
    """Open a file, or make it, and return its descriptor.

    Raises:
        OSError: It cannot be opened, or it is a link: somebody else may have put it there.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def append(path: Path, text: str) -> None:
    """Append *text* to a file, in one write."""
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write *value* to *path*, whole or not at all.

    Raises:
        OSError: It cannot be written, or it holds a number that is not finite, which no JSON can say.
    """
    try:
        text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    except ValueError as error:
        raise OSError(EINVAL, str(error), str(path)) from None
    write_text(path, text)


def write_failure(folder: Path, failure: Failure) -> None:
    """Write a rank's `failure.json`, if that is possible; it is told all the same."""
    with suppress(OSError):
        write_json(folder / "failure.json", asdict(failure))


def write_text(path: Path, text: str) -> None:
    """Write *text* to *path*, whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.unlink(missing_ok=True)  # left by a process that was killed and had the same number
        with open(open_file(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def move_aside(path: Path, folder: Path) -> None:
    """Move *path* into *folder* under a name that is free there; another rank may have moved it already."""
    folder.mkdir(parents=True, exist_ok=True)
    target, copy = folder / path.name, 1
    while target.exists():
        copy += 1
        target = folder / f"{path.name}~{copy}"
    with suppress(FileNotFoundError):
        path.rename(target)


def last_lines(path: Path, number: int) -> list[str]:
    """Return the last *number* lines of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            return file.read().decode(errors="replace").splitlines()[-number:]
    except OSError:
        return []
