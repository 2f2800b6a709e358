"""Names for the arrays that are passed around, and for a function of them that knows its derivative."""

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

#: float32 or float64, as `--precision` says.
Floats = NDArray[np.floating[Any]]
FloatType = np.dtype[np.floating[Any]]
#: One row for each node. (nodes, width)
Rows = Floats
Ids = NDArray[np.int64]
Indices = NDArray[np.int32]

#: Bytes of a line of the cache.
_LINE = 64


def empty_rows(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of undefined numbers that begins at a line of the cache.

    numpy's begin 16 bytes behind one: then most vectors of 64 bytes lie across two lines, and take twice as long.
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _LINE, np.uint8)
    begin = -memory.ctypes.data % _LINE
    rows: NDArray[Any] = memory[begin : begin + size].view(dtype).reshape(shape)
    return rows


class HostFunction(Protocol):
    """A function of arrays with its derivative; each object is used for one call."""

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the result."""

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:
        """Return the gradient of each input, given the inputs, the result and the gradient of the result."""
