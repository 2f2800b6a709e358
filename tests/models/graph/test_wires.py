"""The encodings of halo rows in messages keep what they promise."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from unilaunch_graph.exchange.wire import BFloat16, Exact, Wire
from unilaunch_graph.kernels.portable import to_bfloat16


def _travel(wire: Any, rows: NDArray[Any]) -> NDArray[Any]:
    columns, kind = wire.columns(rows.shape[1], rows.dtype)
    buffer = np.empty((len(rows), columns), kind)
    wire.pack(rows, np.arange(len(rows), dtype=np.int32), buffer)
    return np.asarray(wire.unpack(buffer, rows.shape[1], rows.dtype))


def test_wires_keep_what_they_promise() -> None:
    """bfloat16: the nearest of its numbers, as torch rounds."""
    import torch

    rows = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32) * 1e3
    expected = torch.from_numpy(rows).bfloat16().float().numpy()
    np.testing.assert_array_equal(_travel(BFloat16(), rows), expected)
    assert to_bfloat16(np.ones(1, np.float32))[0] == 0x3F80


def test_bfloat16_rounds_ties_to_even() -> None:
    """As torch does: half a step away is rounded to the word whose last bit is 0, up or down, of either sign."""
    import torch

    words = np.array([0x3F80, 0x3F81, 0x4049, 0x404A, 0x0001, 0x7F7E, 0], np.uint32)
    for half in (0x7FFF, 0x8000, 0x8001):
        for sign in (0, 0x8000_0000):
            numbers = ((words << 16) + half + sign).astype(np.uint32).view(np.float32)
            expected = torch.from_numpy(numbers).bfloat16().view(torch.int16).numpy().view(np.uint16)
            np.testing.assert_array_equal(to_bfloat16(numbers), expected)


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wire", [Exact(), BFloat16()], ids=lambda wire: type(wire).__name__)
def test_no_wire_makes_a_diverged_row_finite(wire: Wire, number: float) -> None:
    """So that a training which has left the finite numbers is found; the other rows stay as they were."""
    rows = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    rows[1, 2] = number
    with np.errstate(invalid="ignore"):  # as in a training
        arrived = _travel(wire, rows)
    assert not np.isfinite(arrived[1, 2])
    assert np.isfinite(arrived[[0, 2]]).all()
