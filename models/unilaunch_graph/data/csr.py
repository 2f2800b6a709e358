"""Check arrays from a file: that they are a sparse matrix in CSR form, in a range, or fit into float32."""

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

#: Rows that are checked at a time: the file may be larger than the memory.
_ROWS = 1 << 16


def check_csr(indptr: NDArray[Any], indices: NDArray[Any], shape: tuple[int, int], prefix: str = "") -> None:
    """Check the row pointers and the columns of a CSR matrix.

    Args:
        indptr: Where each row begins in *indices*; whole numbers, one dimension.
        indices: Columns of the entries; whole numbers, one dimension.
        shape: Rows and columns of the matrix.
        prefix: Prefix of the arrays' names, for the message.

    Raises:
        ValueError: They are not a matrix of that shape; the text names the wrong entry.
    """
    rows, columns = shape
    if len(indptr) != rows + 1:
        raise ValueError(f"{prefix}indptr must have {rows + 1} entries, one more than rows, not {len(indptr)}")
    if indptr[0] != 0:
        raise ValueError(f"{prefix}indptr[0] must be 0, not {indptr[0]}")
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(falls):
        at = int(falls[0])
        raise ValueError(f"{prefix}indptr[{at + 1}] is {indptr[at + 1]}, less than {indptr[at]} before it")
    if indptr[-1] != len(indices):
        raise ValueError(f"{prefix}indptr ends with {indptr[-1]}, but there are {len(indices)} {prefix}indices")
    check_range(indices, columns, f"{prefix}indices")


def check_range(values: NDArray[Any], end: int, name: str, start: int = 0) -> None:
    """Check that all *values* are whole numbers from *start* to *end*, exclusive; any shape.

    Raises:
        ValueError: One is not; the text names the first.
    """
    if not values.size or (values.min() >= start and values.max() < end):
        return
    at = tuple(int(axis[0]) for axis in np.nonzero((values < start) | (values >= end)))
    raise ValueError(f"{name}[{', '.join(map(str, at))}] is {values[at]}; allowed are {start} to {end - 1}")


def check_floats(values: NDArray[Any], name: str, row: str) -> None:
    """Check that float32 can hold all numbers: floats are finite in it, and it rounds no integer.

    Args:
        values: The numbers: (rows,) or (rows, width).
        name: Their name, for the message.
        row: What a row belongs to, "node" or "edge", for the message.

    Raises:
        ValueError: One is not; the text names the first.
    """
    for begin in range(0, len(values), _ROWS):
        piece = values[begin : begin + _ROWS]
        if (wrong := strange_to_float32(piece)).any():
            at = tuple(np.argwhere(wrong)[0])
            refuse_number(piece[at], f"{name} of {row} {begin + at[0]}", row, *at[1:])


def strange_to_float32(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which numbers are not finite in float32, or are integers that it would round. Of the shape of *values*"""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
        strange: NDArray[np.bool_] = ~np.isfinite(narrow)
        if values.dtype.kind in "iu":
            strange |= narrow.astype(values.dtype) != values
    return strange


def refuse_number(value: Any, place: str, row: str, column: object = None) -> NoReturn:
    """Refuse a number of `strange_to_float32`.

    Raises:
        ValueError: Always.
    """
    where = "" if column is None else f" in column {column}"
    if value.dtype.kind in "iu":
        raise ValueError(
            f"{place} is {value}{where}, which float32 rounds: give ids and times as an array of their own "
            f"({row}_arrays=), or as floats"
        )
    with np.errstate(over="ignore"):
        raise ValueError(f"{place} is {np.float32(value)}{where}; it must be finite as float32")
