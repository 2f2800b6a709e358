"""Read arrays, sparse matrices and lists from the pickles of Python 2, without ever unpickling.

A pickle is a program. pickletools decodes it and runs none of it; here its few harmless instructions are followed on a
stack of plain values, where the classes that it names are words and "calling" one writes down name and arguments. No
import and no call exists that a file could reach. (pickle.Unpickler with a strict find_class is not enough: seven bytes
make it take 32 GB, and nested tuples as the key of a dict overflow the interpreter's stack.)
"""

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_gcn.datasets.csr import check_csr

_RECONSTRUCT, _NDARRAY, _DTYPE, _CSR, _DEFAULTDICT, _LIST = "reconstruct", "ndarray", "dtype", "csr", "defaultdict", "list"
#: What a pickle may name, under the module names of then and now.
_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _DTYPE,
    ("scipy.sparse.csr", "csr_matrix"): _CSR,
    ("scipy.sparse._csr", "csr_matrix"): _CSR,
    ("collections", "defaultdict"): _DEFAULTDICT,
    ("__builtin__", "list"): _LIST,
    ("builtins", "list"): _LIST,
}
_NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
_MOST_COLUMNS = 2**31


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
    """Return the array of numbers that *path* holds, of one or two dimensions.

    Raises:
        InputError: The file cannot be read, is damaged, holds something else, or wants to import something.
    """
    return _read(path, _array)


def read_matrix(path: Path) -> sp.csr_array:
    """Return the sparse matrix that *path* holds, in CSR form and checked.

    Raises:
        InputError: The file cannot be read, is damaged, holds something else, or wants to import something.
    """
    return _read(path, _matrix)


def read_lists(path: Path) -> Lists:
    """Return the dict of lists of whole numbers that *path* holds.

    Raises:
        InputError: The file cannot be read, is damaged, holds something else, or wants to import something.
    """
    content = _content(path)
    return _converted(path, content, lambda root: _lists(root, len(content)))


class _ForeignError(Exception):
    """A pickle wants something that is not admitted."""


@dataclass(frozen=True, slots=True, eq=False)
class _Name:
    """A class or function that the pickle names."""

    kind: str


@dataclass(slots=True, eq=False)
class _Made:
    """What the pickle would have made: name, arguments and state, written down."""

    kind: str
    arguments: tuple[object, ...]
    state: object = None
