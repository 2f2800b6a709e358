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

from models.graph.layers_of_pyg import CASES, NOT_MADE, REFUSED, WIDTH, Case
from models.graph.torch_parts import make_whole, on_parts
from unilaunch.errors import SpecError
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


def check_exact(case: Case, owner: Any = None) -> None:
    """Compare rows, gradients of the rows and gradients of the parameters with one process's."""
    alone, *layers = _make(case, 1 + PARTS)
    out, grad = _run(case, alone, WHOLE)

    def work(part: GraphPart) -> Any:
        layer = distribute(layers[part.rank], part)
        part_out, part_grad = _run(case, layer, part)
        sum_gradients(layer, part)
        return gather(part_out, part), gather(part_grad, part), [p.grad for p in layer.parameters()]

    for rank, (whole_out, whole_grad, grads) in enumerate(on_parts(WHOLE, PARTS, work, owner)):
        if rank == 0:
            torch.testing.assert_close(whole_out, out, rtol=0, atol=1e-10)
            torch.testing.assert_close(whole_grad, grad, rtol=0, atol=1e-10)
        torch.testing.assert_close(grads, [p.grad for p in alone.parameters()], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_is_exact_on_parts(name: str) -> None:
    """Rows and all gradients are those of PyG in one process, to 1e-10 in float64."""
    check_exact(CASES[name])


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


@pytest.mark.parametrize("name", REFUSED)
def test_a_convolution_is_refused_by_name(name: str) -> None:
    """The message names the module in the model, its class, and why."""
    model = torch.nn.ModuleDict({"second": REFUSED[name]()})
    part: Any = None
    with pytest.raises(SpecError, match=rf"second \({name}\): {CLASSES[getattr(conv, name)]}"[:60]):
        distribute(model, part)


def test_the_table_in_the_docs_names_every_class() -> None:
    """docs/graph-layers.md says of each class of torch_geometric.nn.conv what these tests show."""
    names = [name for name in conv.__all__ if name != "MessagePassing"]
    assert sorted(names) == sorted([*CASES, *REFUSED, *NOT_MADE])
    rows = [f"| `{name}` | {_verdict(name)} |" for name in names]
    table = "\n".join(["| class | under `distribute` |", "|---|---|", *rows])
    head, begin, rest = PAGE.read_text().partition("<!-- table -->\n")
    _, end, tail = rest.partition("\n<!-- end of the table -->")
    page = head + begin + table + end + tail
    if "UPDATE_DOCS" in os.environ:  # noqa: TID251
        PAGE.write_text(page)
    assert PAGE.read_text() == page


def _verdict(name: str) -> str:
    if name in CASES:
        return "exact"
    reason = CLASSES.get(getattr(conv, name))
    return f"refused: {reason}" if reason else f"not tried: it needs {NOT_MADE[name]}"
