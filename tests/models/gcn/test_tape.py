"""The record of steps on host arrays: the derivatives that torch finds of the same expression."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from unilaunch_gcn.features import SparseFeatures
from unilaunch_gcn.host import ELU
from unilaunch_gcn.mindspore_tensors import Recorded, Tape, call
from unilaunch_gcn.network import normalise

SHAPES = [(7, 5), (7, 5), (5,), (7, 1), (1, 1)]


def _expression(given: Sequence[Any], mean: Callable[[Any], Any], elu: Any, mix: Any) -> Any:
    """Every operation, arrays that numpy repeats, one that is used twice, and a step that leads nowhere."""
    rows, others, row, column, one = given
    _ = rows * others
    use: Any = SimpleNamespace(mean=mean)  # of a framework, normalise needs this alone
    left = normalise(mix(rows), one, use) * row + row
    return elu((left - others) / column + rows * column)


@pytest.mark.parametrize("num_rows", [7, 0])
def test_derivatives_are_those_of_torch(num_rows: int) -> None:
    """To 1e-12, also where there are no rows; the record is empty afterwards, so its arrays are freed."""
    draw = np.random.default_rng(0)
    shapes = [(num_rows if size == 7 else size, *rest) for size, *rest in SHAPES]
    arrays = [draw.random(shape) + 0.5 for shape in shapes]
    matrix = draw.random((num_rows, num_rows))
    gradient = draw.random((num_rows, 5))

    tensors: list[Any] = [torch.tensor(array, requires_grad=True) for array in arrays]
    expected = _expression(
        tensors,
        lambda rows: rows.mean(dim=1, keepdim=True),
        torch.nn.functional.elu,
        lambda rows: torch.tensor(matrix) @ rows,
    )
    expected.backward(torch.tensor(gradient))

    tape, operator = Tape(), SparseFeatures(sp.csr_array(matrix))
    given = [Recorded(array, tape) for array in arrays]
    found = _expression(given, Recorded.mean, lambda rows: call(ELU, rows), lambda rows: rows.apply(operator))
    np.testing.assert_allclose(found.array, expected.detach(), rtol=0, atol=1e-12)
    for mine, tensor in zip(tape.gradients(found, gradient, given), tensors, strict=True):
        np.testing.assert_allclose(mine, tensor.grad, rtol=0, atol=1e-12)
    assert tape.steps == []


def test_nothing_is_recorded_without_a_tape() -> None:
    """An evaluation holds no array longer than it needs."""
    rows = Recorded(np.ones((3, 2)))
    assert (rows * rows + rows).mean().tape is None
