"""Normalisations on parts: rows of 16 bits, and how they are called."""

from collections.abc import Callable

import pytest
import torch
from torch_geometric import nn

from models.graph.torch_parts import make_whole, on_parts
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart

WHOLE = make_whole()
PARTS = 3
NORMS: list[Callable[[], torch.nn.Module]] = [
    lambda: torch.nn.BatchNorm1d(8),
    lambda: nn.BatchNorm(8),
    lambda: nn.InstanceNorm(8, track_running_stats=True),
    lambda: nn.GraphNorm(8),
    nn.PairNorm,
    nn.MeanSubtractionNorm,
    lambda: nn.LayerNorm(8),
    lambda: nn.LayerNorm(8, affine=False),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("whole_model", [False, True])
@pytest.mark.parametrize("make", NORMS)
def test_rows_of_16_bits_are_summed_in_float32(
    make: Callable[[], torch.nn.Module], dtype: torch.dtype, *, whole_model: bool
) -> None:
    """As torch does; also where the parameters are float32 (autocast). Float16 ends at 65504."""
    rows = (WHOLE.x * 90 + 100).to(dtype)
    exact = make().double()
    expected = exact(rows.double())

    def module() -> torch.nn.Module:
        return make().to(dtype) if whole_model else make()

    def work(part: GraphPart) -> torch.Tensor | None:
        model = distribute(module(), part)
        out = ug.gather(model(rows[part.owned]), part)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffer.double(), exact.get_buffer(name).double(), rtol=0.01, atol=0.01)
        return out

    found, *_ = on_parts(WHOLE, PARTS, work)
    assert found is not None
    assert found.dtype == module()(rows).dtype
    torch.testing.assert_close(found.double(), expected.detach(), rtol=2 * torch.finfo(dtype).eps, atol=1e-2)


@pytest.mark.parametrize("make", [make for make in NORMS if isinstance(getattr(make(), "weight", None), torch.Tensor)])
def test_rows_that_are_all_equal_have_pyg_s_gradient(make: Callable[[], torch.nn.Module]) -> None:
    """Of activations that are all 0 the gradient of LayerNorm was no number."""
    up = torch.arange(WHOLE.x.numel(), dtype=torch.float64).view_as(WHOLE.x)

    def gradient(module: torch.nn.Module, up: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros_like(up, requires_grad=True)
        (module(rows) * up).sum().backward()
        assert rows.grad is not None
        return rows.grad

    def work(part: GraphPart) -> torch.Tensor | None:
        return ug.gather(gradient(distribute(make().double(), part), up[part.owned]), part)

    found, *_ = on_parts(WHOLE, PARTS, work)
    torch.testing.assert_close(found, gradient(make().double(), up))


def test_our_batch_norm_takes_rows_of_16_bits() -> None:
    rows = (WHOLE.x * 90).half()
    found = on_parts(WHOLE, PARTS, lambda part: ug.gather(ug.BatchNorm(8, part)(rows[part.owned]), part))[0]
    torch.testing.assert_close(found, torch.nn.BatchNorm1d(8)(rows))


@pytest.mark.parametrize(("make", "name"), [(nn.GraphNorm, "x"), (nn.BatchNorm, "x"), (torch.nn.BatchNorm1d, "input")])
def test_rows_are_given_by_name_too(make: Callable[[int], torch.nn.Module], name: str) -> None:
    def work(part: GraphPart) -> torch.Tensor | None:
        return ug.gather(distribute(make(8), part)(**{name: part.x.float()}), part)

    found = on_parts(WHOLE, PARTS, work)[0]
    torch.testing.assert_close(found, make(8)(WHOLE.x.float()), rtol=1e-4, atol=1e-5)
