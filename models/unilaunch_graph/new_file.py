"""A new file of an array that is mapped for writing, with its room on the disk."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
