"""Layers that are called with `edge_index.flip(0)`: exact on any number of parts, or refused in one line."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import nn
from torch_geometric.utils import remove_self_loops, to_undirected
from typing_extensions import override

from models.graph.layers_of_pyg import WIDTH, Case, Net, check_exact
from models.graph.torch_parts import UNEVEN, WHOLE, Whole, each_part
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.data.edges import edges_as_given

pytestmark = pytest.mark.usefixtures("float64")


class _Farthest(nn.MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """A class of a user's own: the largest differences between a node and its neighbours, by the edges' weights."""

    def __init__(self) -> None:
        super().__init__("max")
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=self.linear(x), factors=edge_weight)

    @override
    def message(self, x_i: torch.Tensor, x_j: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        return (x_j - x_i) * factors[:, None]


class _Inside(nn.MessagePassing):  # type: ignore[misc]
    """Turns the edges round itself, where no argument of a layer shows them."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.propagate(edge_index.flip(0), x=x)


class _Both(torch.nn.Module):
    """Adds the rows of a layer along the edges, and of one against them."""

    def __init__(self, make: Callable[[], torch.nn.Module]) -> None:
        super().__init__()
        self.along, self.against = make(), make()

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, **arrays: torch.Tensor) -> Any:
        return self.along(x, edge_index, **arrays) + self.against(x, edge_index.flip(0), **arrays)


#: Layers that are called in both directions, and the array of the edges that they are given.
BOTH: dict[str, tuple[Callable[[], Any], str]] = {
    "SAGEConv": (lambda: nn.SAGEConv(WIDTH, 4), ""),
    "GINConv": (lambda: nn.GINConv(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())), ""),
    "GCNConv": (lambda: nn.GCNConv(WIDTH, 4), ""),
    "GCNConv, weights": (lambda: nn.GCNConv(WIDTH, 4), "edge_weight"),
    "ChebConv": (lambda: nn.ChebConv(WIDTH, 4, K=3), "edge_weight"),
    "GATConv": (lambda: nn.GATConv(WIDTH, 4, heads=2, edge_dim=3), "edge_attr"),
    "GATConv, max": (lambda: nn.GATConv(WIDTH, 4, edge_dim=3, aggr="max"), "edge_attr"),
    "GATv2Conv": (lambda: nn.GATv2Conv(WIDTH, 4, heads=2, edge_dim=3), "edge_attr"),
    "a class of one's own": (_Farthest, "edge_weight"),
}


def _both(make: Callable[[], Any], name: str) -> tuple[Case, tuple[str, ...]]:
    names = (name,) if name else ()
    return Case(
        lambda: _Both(make), lambda model, x, g: model(x, g.edge_index, **{name: getattr(g, name) for name in names})
    ), names


MODELS: dict[str, tuple[Case, tuple[str, ...]]] = {
    **{name: _both(*how) for name, how in BOTH.items()},
    "DirGNNConv, SAGE": (Case(lambda: nn.DirGNNConv(nn.SAGEConv(WIDTH, 4))), ()),
    "DirGNNConv, GCN": (Case(lambda: nn.DirGNNConv(nn.GCNConv(WIDTH, 4))), ()),
    "DirGNNConv, GAT": (Case(lambda: nn.DirGNNConv(nn.GATConv(WIDTH, 4))), ()),
}


@pytest.mark.parametrize("name", MODELS)
def test_both_directions_are_exact(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Rows and all gradients on one part, on two, and where one has no edges; the check by numbers sees it too."""
    case, learned = MODELS[name]
    check_exact(case, learned=learned)
    for owner in (np.zeros(40), UNEVEN):
        check_exact(case, owner, learned=learned, check=False)
    assert "is not checked" not in caplog.text


def _with_edges(sources: Any, targets: Any) -> Whole:
    """Return the graph with other edges, which have no places in a list of the user's."""
    edges = edges_as_given(sources, targets, 40)._replace(edge_arrays={})
    ends = np.stack([edges.indices, np.repeat(np.arange(40), np.diff(edges.indptr))]).astype(np.int64)
    return replace(WHOLE, edge_index=torch.from_numpy(ends), graph=replace(WHOLE.graph, **edges._asdict()))


_BACK = to_undirected(remove_self_loops(WHOLE.edge_index)[0]).numpy()
GRAPHS = {"directed": WHOLE, "undirected": _with_edges(*_BACK), "loops": _with_edges(np.arange(35), np.arange(35))}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("edges", [lambda e: e.flip(0), lambda e: torch.stack([e[1], e[0]]), torch.clone])
def test_edges_are_told_by_their_numbers(edges: Callable[[torch.Tensor], torch.Tensor], name: str) -> None:
    """Whatever has turned them; a copy is no flip. The check by numbers lets them through."""
    case = Case(lambda: nn.GCN(WIDTH, WIDTH, 2, 4), lambda model, x, g: model(x, edges(g.edge_index)))
    check_exact(case, UNEVEN, whole=GRAPHS[name], check=name == "undirected")


@each_part(3)
def test_weights_of_edges_that_change_are_seen(part: Any) -> None:
    """Those of the part travel once, until somebody writes to them."""
    model = nn.GCNConv(WIDTH, 4, normalize=False)
    model.lin.weight.data.fill_(0.5)
    expected = model(WHOLE.x, WHOLE.edge_index.flip(0), WHOLE.edge_weight).detach()
    distributed = ug.distribute(copy.deepcopy(model), part)
    for factor in (1, 2, 2):
        found = distributed(part.x, part.edge_index.flip(0), part.edge_weight).detach() / factor
        torch.testing.assert_close(found, expected[part.owned], rtol=0, atol=1e-10)
        part.edge_weight.mul_(2 / factor)


def _without_loops(net: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    return net.conv(x, remove_self_loops(edges)[0] if (edges[0] == edges[1]).any() else edges)


def test_ranks_that_change_their_edges_may_be_some_of_all() -> None:
    """Which edges a layer is called with is then no question to the other ranks."""
    loop = np.flatnonzero(UNEVEN == 0)[:1]  # of a node of rank 0
    ends = np.concatenate([[loop, loop], remove_self_loops(WHOLE.edge_index)[0].numpy()], 1)
    case = Case(lambda: Net(_without_loops, conv=nn.SAGEConv(WIDTH, 4)))
    check_exact(case, UNEVEN, whole=_with_edges(*ends))


def _written(part: ug.GraphPart) -> torch.Tensor:
    part.edge_index[0] = part.edge_index[0].flip(0)
    return part.edge_index.flip(0)


@pytest.mark.parametrize(("make", "given", "words"), [
    (_Inside, lambda p: (p.edge_index,), "as an argument of a layer"),
    (lambda: nn.GATConv(WIDTH, 4), lambda p: (p.edge_index.flip(0), None, None, True), "expected rows of nodes"),
    (lambda: nn.SAGEConv(WIDTH, 4), lambda p: (p.edge_index.flip(0)[:, p.rank + 1 :],), "with all edges"),
    (lambda: nn.SAGEConv(WIDTH, 4), lambda p: (_written(p),), "the edges that were loaded"),
], ids=["inside of a layer", "attention", "some edges", "written"])  # fmt: skip
@each_part(2)
def test_what_is_not_exact_is_refused(part: ug.GraphPart, make: Any, given: Any, words: str) -> None:
    with pytest.raises(SpecError, match=f"^.*{words}[^\n]*$"):
        ug.distribute(make(), part, check=False)(part.x, *given(part))
