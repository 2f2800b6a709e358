"""Layers that are called with `edge_index.flip(0)`: exact on any number of parts, or refused in one line."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import nn
from torch_geometric.utils import contains_self_loops, degree, remove_self_loops
from typing_extensions import override

from models.graph.layers_of_pyg import WIDTH, Case, check_exact, seeded
from models.graph.torch_parts import UNEVEN, WHOLE, Whole, each_part, make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.data.edges import edges_as_given
from unilaunch_graph.torch.part import GraphPart

pytestmark = pytest.mark.usefixtures("float64")


class Both(torch.nn.Module):
    """Adds the rows of a layer along the edges, and of one against them."""

    def __init__(self, make: Callable[[], torch.nn.Module]) -> None:
        super().__init__()
        self.along, self.against = make(), make()

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, **arrays: torch.Tensor) -> Any:
        return self.along(x, edge_index, **arrays) + self.against(x, edge_index.flip(0), **arrays)


class _Farthest(nn.MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """A class of a user's own: the largest differences between a node and its neighbours, by the edges' weights."""

    def __init__(self) -> None:
        super().__init__(aggr="max")
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=self.linear(x), weight=edge_weight)

    @override
    def message(self, x_i: torch.Tensor, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x_j - x_i) * weight[:, None]


class _Nested(nn.MessagePassing):  # type: ignore[misc]
    """Calls layers along its own edges, and against them."""

    def __init__(self) -> None:
        super().__init__()
        self.along, self.against = nn.SAGEConv(WIDTH, WIDTH), nn.GCNConv(WIDTH, WIDTH)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=self.along(x, edge_index) + self.against(x, edge_index.flip(0)))


class _Divided(nn.MessagePassing):  # type: ignore[misc]
    """Divides each source's row by a number of the source."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, divisors: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x, factors=1 / divisors[edge_index[0]])

    @override
    def message(self, x_j: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        return x_j * factors[:, None]


class _Degrees(torch.nn.Module):
    """Counts edges outside of the layer that uses the counts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = _Divided()

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        degrees = degree(edge_index[1], x.size(0)) + 1
        return self.conv(x, edge_index, degrees) + self.conv(x, edge_index.flip(0), degrees)


def _both(make: Callable[[], Any], *names: str) -> tuple[Case, tuple[str, ...]]:
    """Return a layer in both directions, and the arrays of the edges that it is given."""
    return Case(
        lambda: Both(make), lambda model, x, g: model(x, g.edge_index, **{name: getattr(g, name) for name in names})
    ), names


MODELS: dict[str, tuple[Case, tuple[str, ...]]] = {
    "SAGEConv": _both(lambda: nn.SAGEConv(WIDTH, 4)),
    "GINConv": _both(lambda: nn.GINConv(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()))),
    "GCNConv": _both(lambda: nn.GCNConv(WIDTH, 4)),
    "GCNConv, weights": _both(lambda: nn.GCNConv(WIDTH, 4), "edge_weight"),
    "ChebConv": _both(lambda: nn.ChebConv(WIDTH, 4, K=3), "edge_weight"),
    "GATConv": _both(lambda: nn.GATConv(WIDTH, 4, heads=2, edge_dim=3), "edge_attr"),
    "GATConv, max": _both(lambda: nn.GATConv(WIDTH, 4, edge_dim=3, aggr="max"), "edge_attr"),
    "GATv2Conv": _both(lambda: nn.GATv2Conv(WIDTH, 4, heads=2, edge_dim=3), "edge_attr"),
    "DirGNNConv, SAGE": (Case(lambda: nn.DirGNNConv(nn.SAGEConv(WIDTH, 4))), ()),
    "DirGNNConv, GCN": (Case(lambda: nn.DirGNNConv(nn.GCNConv(WIDTH, 4))), ()),
    "DirGNNConv, GAT": (Case(lambda: nn.DirGNNConv(nn.GATConv(WIDTH, 4))), ()),
    "a class of one's own": _both(_Farthest, "edge_weight"),
    "degrees": (Case(_Degrees), ()),
    "layers in a layer": _both(_Nested),
}


@pytest.mark.parametrize("name", MODELS)
def test_both_directions_are_exact(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Rows, and gradients of x, of weights and features of edges, of parameters; the check by numbers sees it too.

    On one part, which exchanges nothing; on two; and where one of several parts has no edges.
    """
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


def _undirected() -> Whole:
    """Return the graph with each edge in both directions, once."""
    sources, targets = WHOLE.edge_index.numpy()
    codes = np.unique(np.concatenate([sources * 40 + targets, targets * 40 + sources]))
    return _with_edges(*np.divmod(codes[codes // 40 != codes % 40], 40))


#: The last has loops alone: no part of it can tell whether they were turned round.
GRAPHS = {"directed": WHOLE, "undirected": _undirected(), "loops": _with_edges(np.arange(35), np.arange(35))}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("edges", [lambda e: e.flip(0), lambda e: torch.stack([e[1], e[0]]), torch.clone])
def test_edges_are_told_by_their_numbers(edges: Callable[[torch.Tensor], torch.Tensor], name: str) -> None:
    """Whatever has turned them, in the model or before it; a copy of the edges is no flip.

    The check by numbers lets them through, also where each edge has one back.
    """
    case = Case(lambda: nn.GCN(WIDTH, WIDTH, 2, 4), lambda model, x, g: model(x, edges(g.edge_index)))
    check_exact(case, UNEVEN, whole=GRAPHS[name], check=name == "undirected")


def test_weights_of_edges_that_change_are_seen() -> None:
    """Those of the part travel once, until somebody writes to them."""
    (model,) = seeded(lambda: nn.GCNConv(WIDTH, 4, normalize=False), 1)
    expected = model(WHOLE.x, WHOLE.edge_index.flip(0), WHOLE.edge_weight).detach()

    def work(part: Any) -> None:
        distributed = ug.distribute(copy.deepcopy(model), part)
        for factor in (1, 2, 2):
            with torch.no_grad():
                found = distributed(part.x, part.edge_index.flip(0), part.edge_weight) / factor
            torch.testing.assert_close(found, expected[part.owned], rtol=0, atol=1e-10)
            part.edge_weight.mul_(2 / factor)

    on_parts(WHOLE, 3, work)


class _Inside(nn.MessagePassing):  # type: ignore[misc]
    """Turns the edges round itself, where no argument of a layer shows them."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.propagate(edge_index.flip(0), x=x)


class _Twice(nn.MessagePassing):  # type: ignore[misc]
    """Takes two lists of edges."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, others: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x) + self.propagate(others, x=x)


def _written(part: GraphPart) -> torch.Tensor:
    part.edge_index[0] = part.edge_index[0].flip(0)
    return part.edge_index.flip(0)


def _sage() -> Any:
    return nn.SAGEConv(WIDTH, 4)


#: A layer, what it is called with beside rows, and what the refusal says.
REFUSED: dict[str, tuple[Callable[[], Any], Callable[[Any], tuple[Any, ...]], str]] = {
    "inside of a layer": (_Inside, lambda part: (part.edge_index,), "as an argument of a layer"),
    "both": (_Twice, lambda part: (part.edge_index, part.edge_index.flip(0)), "and other edges: call it twice"),
    "attention": (
        lambda: nn.GATConv(WIDTH, 4), lambda part: (part.edge_index.flip(0), None, None, True), "expected rows of nodes"
    ),
    "some edges": (
        _sage, lambda part: (part.edge_index.flip(0)[:, part.rank + 1 :],), "with all edges and no others"
    ),
    "written": (_sage, lambda part: (_written(part),), "the edges that were loaded"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@each_part(2)
def test_what_is_not_exact_is_refused(part: GraphPart, name: str) -> None:
    """In one line, which says what is expected."""
    make, given, expected = REFUSED[name]
    layer = ug.distribute(make(), part, check=False)
    with pytest.raises(SpecError, match=expected) as raised:
        layer(part.x, *given(part))
    assert "\n" not in str(raised.value)


class _Scores(nn.MessagePassing):  # type: ignore[misc]
    """Takes an array of the edges whose name does not tell."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, scores: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x * scores.sum())


def test_as_many_edges_as_nodes() -> None:
    """On every rank: then the name of an argument tells, or it is refused."""
    whole = make_whole(40, 40)
    case = Case(lambda: nn.GCNConv(WIDTH, 4), lambda layer, x, g: layer(x, g.edge_index.flip(0), g.edge_weight))
    check_exact(case, size=1, whole=whole)

    def work(part: GraphPart) -> None:
        with pytest.raises(SpecError, match="scores: has a row for each edge"):
            ug.distribute(_Scores(), part, check=False)(part.x, part.edge_index.flip(0), part.edge_weight)

    on_parts(whole, 1, work)


def test_predictions_against_the_edges() -> None:
    """A whole model's are exact; a block has no edges out of its nodes, so a layer of a list is refused."""
    (model,) = seeded(lambda: nn.DirGNNConv(nn.SAGEConv(WIDTH, 4)).eval(), 1)
    expected = model(WHOLE.x, WHOLE.edge_index)

    def work(part: GraphPart) -> None:
        found = ug.predict(ug.distribute(copy.deepcopy(model), part), part)
        torch.testing.assert_close(found, expected[part.owned], rtol=0, atol=1e-10)
        with pytest.raises(SpecError, match="block"):
            ug.predict([model], part)

    on_parts(WHOLE, 2, work)


class _WithoutLoops(torch.nn.Module):
    """Makes new edges on the ranks alone whose edges have loops."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = _sage()

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        if contains_self_loops(edge_index):
            edge_index, _ = remove_self_loops(edge_index)
        return self.conv(x, edge_index)


def test_ranks_that_change_their_edges_may_be_some_of_all() -> None:
    """Which edges a layer is called with is then no question to the other ranks."""
    loop = torch.zeros(2, 1, dtype=torch.int64)  # of node 0, which rank 0 owns
    ends = torch.cat([loop, WHOLE.edge_index[:, WHOLE.edge_index[0] != WHOLE.edge_index[1]]], 1)
    graph = replace(WHOLE.graph, **edges_as_given(ends[0].numpy(), ends[1].numpy(), len(WHOLE.x))._asdict())
    check_exact(Case(_WithoutLoops), whole=replace(WHOLE, graph=graph, edge_index=ends))
