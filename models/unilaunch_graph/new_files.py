"""What is written whole or not at all: its name, a folder beside it for what is not whole yet, and mapped arrays."""

import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError


def refuse_no_file(path: Path | str, option: str = "") -> None:
    """Refuse a name that no file can have, before the work whose result it would hold.

    Raises:
        InputError: It is a folder's, or its folder is not there; *option* stands before it.
    """
    if os.path.isdir(path) or not os.path.isdir(Path(path).parent):  # noqa: PTH112  (raises nothing)
        raise InputError(f"{option}{path}: expected the name of a file, in a folder that is there")


@contextmanager
def folder_beside(result: Path) -> Iterator[Path]:
    """Yield a new hidden folder beside *result*; at the end it is removed, unless it was renamed.

    A killed process removes nothing, so those that it left for the same result are removed here. A lock tells them from
    the folders of processes that are writing; it ends with its process. Where folders cannot be locked they all stay.
    So do those of other hosts, whose locks some network file systems do not show here, and of before a new start.

    Raises:
        OSError: The folder cannot be made.
    """
    name = f".{result.name}.{_kernel()}"
    for left in result.parent.glob(f"{glob.escape(name)}.{'[0-9a-f]' * 32}"):
        _remove_if_left(left)
    own = result.with_name(f"{name}.{uuid4().hex}")
    own.mkdir()
    place = os.open(own, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_EX)
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(place)


def _kernel() -> str:
    """Return what names this host's kernel since its start: all processes that see each other's locks have the same."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    return uuid4().hex[:8]  # a sandbox without it: nothing is removed


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        place = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if any(folder.iterdir()):  # an empty one may have been made just now, and will be locked
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(place)


def map_new_file(file: Path, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a mapped array of zeros in a new .npy file; an array without elements is not mapped.

    The disk gives all room here: if a write to a mapped file finds a full disk, the kernel ends the process (SIGBUS).

    Raises:
        OSError: The file cannot be made, or the disk is full.
    """
    file.unlink(missing_ok=True)  # an older mapping of it stays readable while it is referenced
    if 0 in shape:
        none = np.zeros(shape, kind)
        np.save(file, none)
        return none
    array: NDArray[Any] = np.lib.format.open_memmap(file, "w+", kind, shape)  # type: ignore[no-untyped-call]
    try:
        with file.open("rb+") as opened:
            os.posix_fallocate(opened.fileno(), 0, os.fstat(opened.fileno()).st_size)
    except OSError as error:  # it does not name the file
        raise OSError(error.errno, error.strerror, str(file)) from None
    return array
