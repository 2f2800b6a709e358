"""Files in a run's folders: a link is never followed, and JSON is written whole or not at all."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from errno import EINVAL
from pathlib import Path
from typing import Any

from unilaunch.errors import InputError
from unilaunch.folder.failure import Failure

_TAIL = 8192  # bytes at the end of a log in which its last lines are searched


def open_file(path: str | Path, flags: int) -> int:
    """Open a file, with O_CREAT in *flags* also make it, and return its descriptor.

    Raises:
        OSError: It cannot be opened, or it is a link: another user may have made the link.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def refuse_unreadable(folder: Path) -> None:
    """Raise an error if this user may not list an output folder, or a rank's folder in it.

    Where a folder may not be listed, `glob` finds nothing in it.

    Raises:
        InputError: This user has no permission.
    """
    try:
        for path in folder.iterdir():
            if path.name.startswith("rank."):
                with suppress(FileNotFoundError, NotADirectoryError):
                    next(path.iterdir(), None)
    except PermissionError as error:
        raise InputError(f"{error.filename}: no permission to read it: ask the owner of the job") from None
    except OSError:  # there is no such folder
        return


def append(path: Path, text: str) -> None:
    """Append *text* to a file, in one write."""
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0) as file:
        file.write(text.encode())


def as_json(value: Any, indent: int | None = None) -> str:
    """Return *value* as JSON that every reader takes: what stands for a byte that is no text becomes "?".

    Raises:
        ValueError: It contains a number that is not finite, which JSON does not have.
    """
    return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False).encode(errors="replace").decode()


def write_json(path: Path, value: Any) -> None:
    """Write *value* to *path* completely or not at all.

    Raises:
        OSError: It cannot be written, or it contains a number that is not finite, which JSON does not have.
    """
    try:
        text = as_json(value, indent=1) + "\n"
    except ValueError as error:
        raise OSError(EINVAL, str(error), str(path)) from None
    write_text(path, text)


def event_line(**event: Any) -> str:
    """Return a line of `events.jsonl`: the event, with the time in seconds since 1970."""
    return as_json({"time": time.time(), **event}) + "\n"


def add_event(rank_dir: Path, **event: Any) -> None:
    """Append an event that the rank does not record itself to its `events.jsonl`, if that is possible."""
    with suppress(OSError):
        append(rank_dir / "events.jsonl", event_line(**event))


def write_failure(folder: Path, failure: Failure) -> None:
    """Write a rank's `failure.json`, if that is possible; the monitor gets the failure in any case."""
    with suppress(OSError):
        write_json(folder / "failure.json", vars(failure))


def write_text(path: Path, text: str) -> None:
    """Write *text* to *path* completely or not at all."""
    write_whole(path, text.encode())


def write_whole(path: Path, *data: bytes | memoryview) -> None:
    """Write *data*, one after the other, completely or not at all; the folder is not synchronised with the disk.

    Raises:
        OSError: It cannot be written. What was there is left as it was.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.unlink(missing_ok=True)  # the file of a killed process that had the same number
        with open(open_file(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def write_users(path: Path, text: str) -> None:
    """Write a file that the user has named, whole or not at all; a link stays, and a device or a pipe gets the text.

    /dev/stdout can be a file, to which a shell appends: it gets the text too.
    """
    is_open = os.path.realpath(path.parent) in {"/dev", f"/proc/{os.getpid()}/fd"}
    if path.exists() and (is_open or not path.is_file()):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    else:
        write_text(Path(os.path.realpath(path)), text)


def move_aside(path: Path, folder: Path) -> None:
    """Move *path* into *folder* under an unused name; another rank may have moved it already."""
    folder.mkdir(parents=True, exist_ok=True)
    target, copy = folder / path.name, 1
    while target.exists():
        copy += 1
        target = folder / f"{path.name}~{copy}"
    with suppress(FileNotFoundError):
        path.rename(target)


def read_rows(path: Path, tail: int | None = None) -> Iterator[dict[str, Any]]:
    """Return the JSON objects in a file's lines, or those in its last *tail* bytes; an incomplete line is left out."""
    try:
        with path.open("rb") as file:
            if tail is not None:
                file.seek(max(0, path.stat().st_size - tail))
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield row
    except OSError:
        return


def last_lines(path: Path, number: int) -> list[str]:
    """Return the last *number* lines of a file; of a progress bar its last state. Empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            data = file.read()
    except OSError:
        return []
    lines = data.removesuffix(b"\n").split(b"\n")[-number:] if data else []
    return [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines]
