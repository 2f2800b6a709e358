"""A folder beside a file or folder that is written: it holds what is not whole yet."""

import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


@contextmanager
def folder_beside(result: Path) -> Iterator[Path]:
    """Yield a new hidden folder beside *result*; at the end it is removed, unless it was renamed.

    A killed process removes nothing, so those that it left for the same result are removed here. A lock tells them from
    the folders of processes that are writing; it ends with its process. Where folders cannot be locked they all stay.

    Raises:
        OSError: The folder cannot be made.
    """
    for left in result.parent.glob(f".{glob.escape(result.name)}.{'[0-9a-f]' * 32}"):
        _remove_if_left(left)
    own = result.with_name(f".{result.name}.{uuid4().hex}")
    own.mkdir()
    place = os.open(own, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_EX)
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(place)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        place = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if any(folder.iterdir()):  # an empty one may have been made just now, and will be locked
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(place)
