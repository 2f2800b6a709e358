"""Names for the arrays that are passed around, and what is asked of the library whose they are."""

from collections.abc import Sequence
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


class Arrays(Protocol):
    """What numpy, torch and MindSpore each call by another name."""

    def concatenate(self, arrays: list[Any], axis: int) -> Any:
        """Return *arrays*, one after the other along an axis."""

    def empty(self, shape: tuple[int, int], like: Any) -> Any:
        """Return an array of a shape, of the type and at the place of another; its values mean nothing."""


class NumpyArrays:
    """numpy's."""

    def concatenate(self, arrays: list[Any], axis: int) -> Any:
        """Return *arrays*, one after the other along an axis."""
        return np.concatenate(arrays, axis)

    def empty(self, shape: tuple[int, int], like: Any) -> Any:
        """Return an array of a shape and of the type of another; its values mean nothing."""
        return np.empty(shape, like.dtype)


class DeviceArrays(Arrays, Protocol):
    """A framework's arrays on a device."""

    def tensor(self, array: NDArray[Any]) -> Any:
        """Return an array of the host as a tensor of the device."""

    def take(self, rows: Any, places: Any) -> Any:
        """Return the rows at *places*, a tensor of int64."""

    def sparse(self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]) -> Any:
        """Return a CSR matrix whose `matmat(rows, values=None)` is the product, also with other values."""


class HostFunction(Protocol):
    """A function of arrays that knows its derivative; each object is for one call."""

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the result."""

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:
        """Return the gradient of each input, given the inputs, the result and the gradient of the result."""
