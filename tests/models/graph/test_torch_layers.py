"""Every convolution of PyG on three parts of a directed, weighted graph: exact, or refused by name.

With `UPDATE_DOCS=1` in the environment the table of docs/graph-layers.md is written anew.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import conv
from torch_geometric.nn.aggr import MedianAggregation, QuantileAggregation
from torch_geometric.nn.conv import spline_conv

from models.graph.layers_of_pyg import BY_NUMBERS, CASES, WIDTH, Case, spline_basis, spline_weighting
from models.graph.torch_parts import make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch import gather, sum_gradients
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.refusals import CLASSES

PAGE = Path(__file__).parents[3] / "docs" / "graph-layers.md"
WHOLE = make_whole()
#: The nodes without an edge are a part of their own.
WITHOUT_EDGES = np.where(np.arange(40) < 35, np.arange(40) % 2 * 2, 1)
PARTS = 3
pytestmark = pytest.mark.usefixtures("float64")


def _run(case: Case, layer: torch.nn.Module, graph: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the layer's rows, and the gradient of the input under a loss that treats each column in its own way."""
    x = graph.x.clone().requires_grad_()
    out = case.call(layer, x, graph).flatten(1)
    torch.autograd.backward((out * torch.arange(1.0, out.shape[1] + 1).sqrt()).tanh().sum())
    assert x.grad is not None
    return out, x.grad


def _make(case: Case, count: int) -> list[torch.nn.Module]:
    """Return equal layers; torch draws for all threads from one generator."""
    layers = []
    for _ in range(count):
        torch.manual_seed(0)
        layers.append(case.make())
    return layers


def check_exact(case: Case, owner: Any = None, *, check: bool = True) -> None:
    """Compare rows, gradients of the rows and gradients of the parameters with one process's."""
    alone, *layers = _make(case, 1 + PARTS)
    out, grad = _run(case, alone, WHOLE)

    def work(part: GraphPart) -> Any:
        layer = distribute(layers[part.rank], part, check=check)
        part_out, part_grad = _run(case, layer, part)
        sum_gradients(layer, part)
        return gather(part_out, part), gather(part_grad, part), [p.grad for p in layer.parameters()]

    for rank, (whole_out, whole_grad, grads) in enumerate(on_parts(WHOLE, PARTS, work, owner)):
        if rank == 0:
            torch.testing.assert_close(whole_out, out, rtol=0, atol=1e-10)
            torch.testing.assert_close(whole_grad, grad, rtol=0, atol=1e-10)
        torch.testing.assert_close(grads, [p.grad for p in alone.parameters()], rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:We do not recommend using the non-optimized CPU version of `SplineConv`")
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_is_exact_on_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and all gradients are those of PyG in one process, to 1e-10 in float64."""
    monkeypatch.setattr(spline_conv, "spline_basis", spline_basis)  # pyg-lib is not installed
    monkeypatch.setattr(spline_conv, "spline_weighting", spline_weighting)
    check_exact(CASES[name])


@pytest.mark.parametrize(
    "case",
    [
        *(CASES[name] for name in ("GATConv", "GCNConv", "CGConv", "TAGConv", "PNAConv")),
        Case(lambda: conv.SAGEConv(WIDTH, 4, aggr=[MedianAggregation(), QuantileAggregation(0.3), "max"])),
        Case(lambda: conv.SAGEConv(WIDTH, 4, aggr=["median", "softmax", "powermean"])),
    ],
)
def test_a_part_without_edges_is_exact(case: Case) -> None:
    """One rank owns the nodes without edges alone; PyG's own quantiles fail where the first node has no edge."""
    check_exact(case, WITHOUT_EDGES)


@pytest.mark.parametrize("name", BY_NUMBERS)
def test_a_convolution_is_refused_by_its_numbers(name: str) -> None:
    """On one rank, where it is exact, `distribute` gives a warning."""

    def work(part: GraphPart) -> None:
        with pytest.raises(SpecError, match=f"{name} is not exact on parts of a graph"):
            ug.check(BY_NUMBERS[name](), part, part.x, part.edge_index)

    on_parts(WHOLE, 1, work)


def test_the_table_in_the_docs_names_every_class_that_is_not_exact() -> None:
    """docs/graph-layers.md names each class of torch_geometric.nn.conv that these tests do not show to be exact."""
    refused = {
        name for name in conv.__all__ if name not in CASES and name not in BY_NUMBERS and name != "MessagePassing"
    }
    assert all(getattr(conv, name) in CLASSES for name in refused)
    verdicts = {"by its name": refused, "by its numbers": BY_NUMBERS}
    rows = [
        f"| {verdict} | {', '.join(f'`{name}`' for name in conv.__all__ if name in classes)} |"
        for verdict, classes in verdicts.items()
    ]
    table = "\n".join(["| refused | layers |", "|---|---|", *rows])
    head, begin, rest = PAGE.read_text().partition("<!-- table -->\n")
    _, end, tail = rest.partition("<!-- end of the table -->")
    page = f"{head}{begin}{table}\n{end}{tail}"
    if "UPDATE_DOCS" in os.environ:  # noqa: TID251
        PAGE.write_text(page)
    assert PAGE.read_text() == page
