"""The encodings of halo rows in messages: unchanged, or bfloat16."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Indices, Rows
from unilaunch_graph.kernels.portable import from_bfloat16, to_bfloat16


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
