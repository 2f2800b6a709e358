"""Every convolution of PyG on three parts of a directed, weighted graph: exact, or refused by name.

With `UPDATE_DOCS=1` in the environment the table of docs/graph-layers.md is written anew.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import conv
from torch_geometric.nn.aggr import Aggregation, MedianAggregation, QuantileAggregation
from torch_geometric.nn.conv import spline_conv

from models.graph.layers_of_pyg import BARE, BY_NUMBERS, CASES, REFUSED, WIDTH, Case, spline_basis, spline_weighting
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


@pytest.fixture(autouse=True)
def _float64(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


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


def test_the_kernels_of_splines_are_b_splines() -> None:
    """At a knot the one matrix of the knot; elsewhere shares of the neighbours' that sum to 1."""
    sizes, is_open = torch.tensor([3, 4]), torch.tensor([1, 0], dtype=torch.uint8)
    knots = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    basis, index = spline_basis(knots / torch.tensor([2, 4]), sizes, is_open, 1)
    assert torch.equal(basis.max(1).values, torch.ones(12))
    assert torch.equal(index.gather(1, basis.argmax(1)[:, None])[:, 0], knots[:, 0] + 3 * knots[:, 1])
    basis, index = spline_basis(torch.tensor([[0.25, 0.9375]]), sizes, is_open, 1)
    assert dict(zip(index[0].tolist(), basis[0].tolist(), strict=True)) == {
        0 + 3 * 3: 0.125, 1 + 3 * 3: 0.125, 0: 0.375, 1: 0.375,
    }  # fmt: skip
    weight, x = torch.randn(12, 5, 4), torch.randn(1, 5)
    expected = 0.125 * (x @ (weight[9] + weight[10])) + 0.375 * (x @ (weight[0] + weight[1]))
    torch.testing.assert_close(spline_weighting(x, weight, basis, index), expected)


@pytest.mark.parametrize("name", ["GATConv", "GCNConv", "SAGEConv", "CGConv", "TAGConv", "PNAConv"])
def test_a_part_without_edges_is_exact(name: str) -> None:
    """One rank owns the nodes without edges alone."""
    check_exact(CASES[name], WITHOUT_EDGES)


@pytest.mark.parametrize("make", [MedianAggregation, lambda: QuantileAggregation(0.3)])
def test_a_part_without_edges_has_quantiles(make: Callable[[], Aggregation]) -> None:
    """PyG's own fails where the first node has no edge."""
    check_exact(Case(lambda: conv.SAGEConv(WIDTH, 4, aggr=[make(), "max"])), WITHOUT_EDGES)


@pytest.mark.parametrize(
    "make",
    [
        lambda: conv.GCNConv(WIDTH, 4, improved=True, cached=True),
        lambda: conv.GCNConv(WIDTH, 4, add_self_loops=False),
        lambda: conv.ChebConv(WIDTH, 4, K=3, normalization="sym"),
        lambda: conv.SAGEConv(WIDTH, 4, aggr=["max", "median", "softmax", "powermean"]),
        lambda: conv.ARMAConv(WIDTH, 4, shared_weights=True, dropout=0.0),
    ],
)
def test_options_of_a_convolution_are_exact(make: Callable[[], torch.nn.Module]) -> None:
    """Options that change how degrees and neighbours are used."""
    check_exact(Case(make))


@pytest.mark.parametrize("normalization", [None, "rw"])
def test_laplacians_are_exact(normalization: str | None) -> None:
    """ChebConv's other Laplacians, which sum the weights of the edges out of a node."""
    check_exact(
        Case(
            lambda: conv.ChebConv(WIDTH, 4, K=3, normalization=normalization),
            lambda layer, x, g: layer(x, g.edge_index, g.edge_weight, lambda_max=torch.tensor(3.0)),
        )
    )


@pytest.mark.parametrize("name", BY_NUMBERS)
def test_a_convolution_is_refused_by_its_numbers(name: str) -> None:
    """On one rank, where it is exact, `distribute` gives a warning."""

    def work(part: GraphPart) -> None:
        with pytest.raises(SpecError, match=f"{name} is not exact on parts of a graph"):
            ug.check(BY_NUMBERS[name](), part, part.x, part.edge_index)

    on_parts(WHOLE, 1, work)


@pytest.mark.parametrize("name", [*REFUSED, *BARE])
def test_a_convolution_is_refused_by_name(name: str) -> None:
    """The message names the module in the model, its class, and why; those of `BARE` stop without their library."""
    model = torch.nn.ModuleDict({"second": (REFUSED | BARE)[name]()})
    part: Any = None
    with pytest.raises(SpecError) as raised:
        distribute(model, part)
    assert f"second ({name}): {CLASSES[getattr(conv, name)]}" in str(raised.value)


def test_the_table_in_the_docs_names_every_class() -> None:
    """docs/graph-layers.md says of each class of torch_geometric.nn.conv what these tests show."""
    verdicts = {"exact": CASES, "refused by its name": REFUSED | BARE, "refused by its numbers": BY_NUMBERS}
    names = [name for name in conv.__all__ if name != "MessagePassing"]
    assert sorted(names) == sorted(name for classes in verdicts.values() for name in classes)
    rows = [
        f"| {verdict} | {', '.join(f'`{name}`' for name in names if name in classes)} |"
        for verdict, classes in verdicts.items()
    ]
    table = "\n".join(["| under `distribute` | layers |", "|---|---|", *rows])
    head, begin, rest = PAGE.read_text().partition("<!-- table -->\n")
    _, end, tail = rest.partition("<!-- end of the table -->")
    page = f"{head}{begin}{table}\n{end}{tail}"
    if "UPDATE_DOCS" in os.environ:  # noqa: TID251
        PAGE.write_text(page)
    assert PAGE.read_text() == page
