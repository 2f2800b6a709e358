"""How halo rows travel: as they are, as bfloat16, or as eight bits with a range for each row."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats, Indices, Rows


class Wire(Protocol):
    """What rows become on their way."""

    def columns(self, width: int, dtype: Any) -> tuple[int, Any]:
        """Return how many columns of which type an array has in which they travel."""

    def pack(self, rows: Rows, chosen: Indices, out: NDArray[Any]) -> None:
        """Write the *chosen* rows into such an array."""

    def unpack(self, arrived: NDArray[Any], width: int, dtype: Any) -> Rows:
        """Return the rows that have arrived in such an array."""


class Exact:
    """Rows travel as they are."""

    def columns(self, width: int, dtype: Any) -> tuple[int, Any]:
        """Return the rows' own."""
        return width, dtype

    def pack(self, rows: Rows, chosen: Indices, out: NDArray[Any]) -> None:
        """Write the *chosen* rows."""
        np.take(rows, chosen, axis=0, out=out, mode="clip")  # clip: without it, take makes a copy first

    def unpack(self, arrived: NDArray[Any], width: int, dtype: Any) -> Rows:  # noqa: ARG002
        """Return what has arrived, without a copy."""
        return arrived


class BFloat16:
    """Rows travel with the upper half of float32's bits, rounded to the nearest, ties to even."""

    def columns(self, width: int, dtype: Any) -> tuple[int, Any]:  # noqa: ARG002
        """Return 16-bit words."""
        return width, np.uint16

    def pack(self, rows: Rows, chosen: Indices, out: NDArray[Any]) -> None:
        """Round the *chosen* rows."""
        out[...] = to_bfloat16(rows[chosen].astype(np.float32, copy=False))

    def unpack(self, arrived: NDArray[Any], width: int, dtype: Any) -> Rows:  # noqa: ARG002
        """Return the rows as float32, in *dtype*."""
        return from_bfloat16(arrived).astype(dtype, copy=False)


def to_bfloat16(numbers: Floats) -> NDArray[np.uint16]:
    """Return finite float32 *numbers* as bfloat16's words."""
    words = numbers.view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(words: NDArray[np.uint16]) -> Rows:
    """Return bfloat16's words as float32 numbers."""
    numbers: Rows = (words.astype(np.uint32) << 16).view(np.float32)
    return numbers


class Int8:
    """Rows travel as eight-bit steps of their own range, rounded up or down by chance: right in the mean.

    The quantisation of AdaQP (Wan, Zhao and Wu, MLSys 2023), with eight bits throughout. Least value and step of each
    row go with it, as float32.

    Args:
        draw: Where the chance comes from; each rank has its own.
    """

    _STEPS = 255

    def __init__(self, draw: np.random.Generator) -> None:
        self.draw = draw

    def columns(self, width: int, dtype: Any) -> tuple[int, Any]:  # noqa: ARG002
        """Return bytes: the steps, then the row's least value and its step."""
        return width + 8, np.uint8

    def pack(self, rows: Rows, chosen: Indices, out: NDArray[Any]) -> None:
        """Quantise the *chosen* rows."""
        taken = rows[chosen].astype(np.float32, copy=False)
        low = taken.min(axis=1, keepdims=True, initial=np.inf) if taken.size else np.zeros((len(taken), 1), np.float32)
        step = (taken.max(axis=1, keepdims=True, initial=-np.inf) - low) / self._STEPS if taken.size else low
        taken = np.divide(taken - low, step, out=np.zeros_like(taken), where=step > 0)
        taken += self.draw.random(taken.shape, np.float32)
        width = taken.shape[1]
        out[:, :width] = np.minimum(taken, self._STEPS)
        out[:, width:] = np.concatenate((low, step), axis=1).astype(np.float32).view(np.uint8)

    def unpack(self, arrived: NDArray[Any], width: int, dtype: Any) -> Rows:
        """Return the rows, each at its steps."""
        scale = np.ascontiguousarray(arrived[:, width:]).view(np.float32)
        rows = arrived[:, :width].astype(dtype)
        rows *= scale[:, 1:].astype(dtype)
        rows += scale[:, :1].astype(dtype)
        return rows
