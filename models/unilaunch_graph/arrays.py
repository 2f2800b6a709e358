"""Names for the arrays that are passed around, and the interface of the library that holds them."""

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


class Arrays(Protocol):
    """Functions that numpy, torch and MindSpore name differently."""

    def concatenate(self, arrays: list[Any], axis: int) -> Any:
        """Return *arrays*, one after the other along an axis."""

    def empty(self, shape: tuple[int, int], like: Any) -> Any:
        """Return an array of a shape, with the type and the device of another array; its values are undefined."""


class NumpyArrays:
    """The functions of numpy."""

    def concatenate(self, arrays: list[Any], axis: int) -> Any:
        """Return *arrays*, one after the other along an axis."""
        return np.concatenate(arrays, axis)

    def empty(self, shape: tuple[int, int], like: Any) -> Any:
        """Return an array of a shape and of the type of another; its values are undefined."""
        return np.empty(shape, like.dtype)


class DeviceArrays(Arrays, Protocol):
    """A framework's arrays on a device."""

    def tensor(self, array: NDArray[Any]) -> Any:
        """Copy a host array to a tensor on the device."""

    def take(self, rows: Any, places: Any) -> Any:
        """Return the rows at *places*, a tensor of int64."""

    def pack(self, rows: Any, places: Any, factors: Any = None) -> Any:
        """Return the rows at *places*, times *factors* (places, 1) if given, in the type in which they travel."""

    def sparse(self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]) -> Any:
        """Return a CSR matrix whose `matmat(rows, values=None)` is the product, also with other values."""


class HostFunction(Protocol):
    """A function of arrays with its derivative; each object is used for one call."""

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the result."""

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:
        """Return the gradient of each input, given the inputs, the result and the gradient of the result."""
