"""Read an array, a sparse matrix or a dict of lists from a Python 2 pickle, without unpickling."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.csr import check_csr
from unilaunch_graph.data.pickle_program import ForbiddenError, Kind, Made, follow

_NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
_MOST_ENTRIES = 2**31

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lists:
    """A dict of lists of whole numbers, as arrays.

    Attributes:
        keys: The keys, in the file's order. (num_keys,) int64
        counts: Length of each one's list. (num_keys,) int64
        items: The lists, one after the other. (sum(counts),) int64
    """

    keys: NDArray[np.int64]
    counts: NDArray[np.int64]
    items: NDArray[np.int64]


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of numbers that *path* holds, of one or two dimensions and any kind of number.

    Raises:
        InputError: The file cannot be read, is damaged, holds something else, or wants to import something.
    """
    return _read(path, _array)


def read_matrix(path: Path) -> sp.csr_array:
    """Return the sparse matrix that *path* holds, in CSR form, with checked indices.

    Raises:
        InputError: The file cannot be read, is damaged, holds something else, or wants to import something.
    """
    return _read(path, _matrix)


def read_lists(path: Path) -> Lists:
    """Return the dict of lists of whole numbers that *path* holds; a defaultdict is one too.

    Raises:
        InputError: The file cannot be read, is damaged, holds something else, or wants to import something.
    """
    return _read(path, _lists)


def _read(path: Path, convert: Callable[[object, int], T]) -> T:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return convert(follow(content), len(content))
    except ForbiddenError as error:
        raise InputError(f"{path}: {error}; only arrays, sparse matrices and plain containers are read") from error
    except ValueError as error:
        raise InputError(f"{path}: is damaged: {error}") from error


def _array(value: object, _file_size: int = 0) -> NDArray[Any]:
    match value:
        case Made(Kind.RECONSTRUCT, _, (int(), tuple(shape), dtype, int(is_fortran), str() | bytes() as data)):
            content = data.encode("latin-1") if isinstance(data, str) else data
            return _filled(content, _dtype(dtype), shape, "F" if is_fortran else "C")
    raise ValueError("it holds no array where one is expected")


def _filled(content: bytes, dtype: np.dtype[Any], shape: tuple[Any, ...], order: Any) -> NDArray[Any]:
    if len(shape) not in {1, 2} or not all(type(size) is int and 0 <= size < _MOST_ENTRIES for size in shape):
        raise ValueError("an array's shape is not one or two whole numbers")
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"an array of shape {shape} and type {dtype} comes with {len(content)} bytes")
    # A copy in the machine's own byte order: what frombuffer returns cannot be written to.
    return np.frombuffer(content, dtype).reshape(shape, order=order).astype(dtype.newbyteorder("="))


def _dtype(value: object) -> np.dtype[Any]:
    match value:
        case Made(Kind.DTYPE, (str(code), *_), (int(), "<" | ">" | "|" | "=" as order, None, None, None, *_)):
            if code in _NUMBERS:
                return np.dtype(order + code)
            raise ValueError(f"an array is of type {code!r}, not of numbers")
    raise ValueError("an array's type is not one of numbers")


def _matrix(value: object, _file_size: int) -> sp.csr_array:
    match value:
        case Made(
            Kind.CSR, _, {"data": data, "indices": indices, "indptr": indptr, "_shape": (int(rows), int(columns))}
        ):
            return _csr(_array(data), _array(indices), _array(indptr), (rows, columns))
    raise ValueError("it holds no sparse matrix in CSR form")


def _csr(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int]) -> sp.csr_array:
    if not data.shape == indices.shape == (indices.size,) or indptr.shape != (indptr.size,):
        raise ValueError("a sparse matrix has arrays of unequal length")
    if not {indices.dtype.kind, indptr.dtype.kind} <= {"i", "u"}:
        raise ValueError("a sparse matrix has indices that are no whole numbers")
    if min(shape) < 0 or max(shape) >= _MOST_ENTRIES:
        raise ValueError(f"a sparse matrix cannot have the shape {shape}")
    check_csr(indptr, indices, shape)
    return sp.csr_array((data, indices, indptr), shape=shape)


def _lists(value: object, file_size: int) -> Lists:
    if not isinstance(value, dict) or not {*map(type, value.values())} <= {list}:
        raise ValueError("it holds no dict of lists")
    counts = np.fromiter(map(len, value.values()), np.int64, len(value))
    # One list under many keys would be as many copies of it.
    if counts.sum() > file_size:
        raise ValueError("its lists have more entries than the file has bytes")
    if not {*map(type, chain(value, *value.values()))} <= {int}:
        raise ValueError("its lists have entries that are no whole numbers")
    items = chain.from_iterable(value.values())
    return Lists(np.fromiter(value, np.int64, len(value)), counts, np.fromiter(items, np.int64, counts.sum()))
