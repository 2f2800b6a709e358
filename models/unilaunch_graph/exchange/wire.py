"""The encodings of halo rows in messages: unchanged, bfloat16, or eight bits with a range for each row."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Indices, Rows
from unilaunch_graph.kernels.rounding import from_bfloat16, to_bfloat16


class Wire(Protocol):
    """An encoding of rows in messages."""

    def columns(self, width: int, dtype: Any) -> tuple[int, Any]:
        """Return the number of columns and the type of the encoded array."""

    def pack(self, rows: Rows, chosen: Indices, out: NDArray[Any]) -> None:
        """Encode the *chosen* rows into an array of that kind."""

    def unpack(self, arrived: NDArray[Any], width: int, dtype: Any) -> Rows:
        """Decode the rows that have arrived in an array of that kind."""


class Exact:
    """Send rows unchanged."""

    def columns(self, width: int, dtype: Any) -> tuple[int, Any]:
        """Return the columns and the type of the rows."""
        return width, dtype

    def pack(self, rows: Rows, chosen: Indices, out: NDArray[Any]) -> None:
        """Write the *chosen* rows."""
        np.take(rows, chosen, axis=0, out=out, mode="clip")  # clip: without it, take makes a copy first

    def unpack(self, arrived: NDArray[Any], width: int, dtype: Any) -> Rows:  # noqa: ARG002
        """Return what has arrived, without a copy."""
        return arrived


class BFloat16:
    """Send the upper half of float32's bits, rounded to the nearest, ties to even."""

    def columns(self, width: int, dtype: Any) -> tuple[int, Any]:  # noqa: ARG002
        """Return 16-bit words."""
        return width, np.uint16

    def pack(self, rows: Rows, chosen: Indices, out: NDArray[Any]) -> None:
        """Round the *chosen* rows, or take them if they are bfloat16's words already."""
        if rows.dtype == np.uint16:
            np.take(rows, chosen, axis=0, out=out, mode="clip")
        else:
            out[...] = to_bfloat16(rows[chosen].astype(np.float32, copy=False))

    def unpack(self, arrived: NDArray[Any], width: int, dtype: Any) -> Any:  # noqa: ARG002
        """Return the rows in *dtype*: a float type, or uint16 for bfloat16's words."""
        return arrived if dtype == np.uint16 else from_bfloat16(arrived).astype(dtype, copy=False)


class Int8:
    """Send eight-bit steps of each row's range, rounded up or down at random: unbiased.

    The quantisation of AdaQP (Wan, Zhao and Wu, MLSys 2023), with eight bits throughout. Least value and step of each
    row are sent with it, as float32.

    Args:
        draw: The random generator; each rank has another one.
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
        """Return the rows, decoded from their steps."""
        scale = np.ascontiguousarray(arrived[:, width:]).view(np.float32)
        rows = arrived[:, :width].astype(dtype)
        rows *= scale[:, 1:].astype(dtype)
        rows += scale[:, :1].astype(dtype)
        return rows
