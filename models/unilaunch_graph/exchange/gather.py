"""Gather the rows of all nodes in the user's order into one file, at rank 0 and in bounded memory."""

import shutil
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.new_files import folder_beside, map_new_file
from unilaunch_graph.partition.part import Part
from unilaunch_graph.purpose import Purpose

#: Rows that a rank sends at a time.
_ROWS = 1 << 14


def gather_rows(
    part: Part, rows: NDArray[Any], collectives: Collectives, put: Callable[[NDArray[np.int32], NDArray[Any]], None]
) -> None:
    """Bring the owned rows of all ranks to rank 0, some at a time; all ranks must call it.

    Args:
        part: This rank's part.
        rows: Its rows, also mapped from a file. (num_owned, width)
        collectives: The ranks' collectives on host arrays.
        put: Called with global ids and their rows, on rank 0 until all nodes have arrived; not called elsewhere.
    """
    sizes = np.zeros(part.num_parts)
    sizes[part.index] = part.num_owned
    collectives.calls.purpose = Purpose.GATHER
    collectives.all_reduce(sizes)
    for begin in range(0, int(sizes.max()), _ROWS):
        counts = np.clip(sizes - begin, 0, _ROWS).astype(int).tolist()
        span = slice(begin, begin + counts[part.index])
        if part.index == 0:
            put(part.owned[span].astype(np.int32), rows[span])
        nodes = _to_first(part, part.owned[span].astype(np.int32)[:, None], counts, collectives)
        values = _to_first(part, np.ascontiguousarray(rows[span]), counts, collectives)
        put(nodes[:, 0], values)


def _to_first(part: Part, rows: NDArray[Any], counts: list[int], collectives: Collectives) -> NDArray[Any]:
    """Return the other ranks' rows on rank 0, no rows elsewhere."""
    is_first, others = part.index == 0, part.num_parts - 1
    received = np.empty((sum(counts[1:]) if is_first else 0, rows.shape[1]), rows.dtype)
    send_counts = [0 if is_first else len(rows), *[0] * others]
    receive_counts = [0, *counts[1:]] if is_first else [0] * part.num_parts
    collectives.calls.purpose = Purpose.GATHER
    collectives.exchange(rows[: sum(send_counts)], send_counts, received, receive_counts).wait()
    return received


def save_rows(path: Path, part: Part, arrays: Mapping[str, NDArray[Any]], collectives: Collectives) -> None:
    """Write the rows of all nodes as one .npz file, whole or not at all; all ranks must call it.

    Rank 0 puts the rows in order in a file beside the result, so that no rank has more than one block of other ranks'
    rows in its memory.

    Args:
        path: The file; only rank 0 writes it.
        part: This rank's part.
        arrays: The owned rows of each array, by its name in the file. (num_owned,) or (num_owned, width)
        collectives: The ranks' collectives on host arrays.

    Raises:
        InputError: On rank 0: the file cannot be written, or is a folder.
    """
    if part.index:
        for array in arrays.values():
            gather_rows(part, _two_dimensional(array), collectives, lambda _nodes, _rows: None)
        return
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder: expected the name of a file")
        with folder_beside(path) as folder:
            for array_name, array in arrays.items():
                _map_rows(folder / f"{array_name}.npy", part, array, collectives)
            whole = folder / "whole"  # no array's file: the user may have called the result rows.npy
            with ZipFile(whole, "w", allowZip64=True) as archive:
                for array_name in arrays:
                    archive.write(folder / f"{array_name}.npy", f"{array_name}.npy")
            shutil.move(whole, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _map_rows(file: Path, part: Part, array: NDArray[Any], collectives: Collectives) -> None:
    shape = (part.num_nodes, *array.shape[1:])
    whole = map_new_file(file, array.dtype, shape)
    flat = _two_dimensional(whole)

    def put(nodes: NDArray[np.int32], rows: NDArray[Any]) -> None:
        flat[nodes] = rows

    gather_rows(part, _two_dimensional(array), collectives, put)
    if isinstance(whole, np.memmap):
        whole.flush()


def _two_dimensional(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(len(array), prod(array.shape[1:]))
