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

from models.graph.test_portable_dropout import Net, train
from models.graph.torch_parts import Whole, make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.data.edges import edges_as_given
from unilaunch_graph.torch.part import GraphPart

WIDTH = 8
WHOLE = make_whole()
#: The nodes without an edge are a part of their own.
WITHOUT_EDGES = np.where(np.arange(40) < 35, np.arange(40) % 2 * 2, 1)
pytestmark = pytest.mark.usefixtures("float64")


class Both(torch.nn.Module):
    """Adds the rows of a layer along the edges, and of one against them; both get *names* of the graph's arrays."""

    def __init__(self, make: Callable[[], torch.nn.Module], *names: str) -> None:
        super().__init__()
        self.along, self.against, self.names = make(), make(), names

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, **arrays: torch.Tensor) -> Any:
        given = {name: arrays[name] for name in self.names}
        return self.along(x, edge_index, **given) + self.against(x, edge_index.flip(0), **given)


class Farthest(nn.MessagePassing):  # type: ignore[misc]  # PyG ships no types
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


class Nested(nn.MessagePassing):  # type: ignore[misc]
    """Calls layers along its own edges, and against them."""

    def __init__(self) -> None:
        super().__init__()
        self.along, self.against = nn.SAGEConv(WIDTH, WIDTH), nn.GCNConv(WIDTH, WIDTH)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        rows = self.along(x, edge_index) + self.against(x, edge_index.flip(0))
        return self.propagate(edge_index, x=rows)


class Divided(nn.MessagePassing):  # type: ignore[misc]
    """Divides each source's row by a number of the source."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, divisors: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x, factors=1 / divisors[edge_index[0]])

    @override
    def message(self, x_j: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        return x_j * factors[:, None]


class Degrees(torch.nn.Module):
    """Counts edges outside of the layer that uses the counts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Divided()

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        degrees = degree(edge_index[1], x.size(0)) + 1
        return self.conv(x, edge_index, degrees) + self.conv(x, edge_index.flip(0), degrees)


def _gin() -> Any:
    return nn.GINConv(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()))


MODELS: dict[str, Callable[[], Any]] = {
    "SAGEConv": lambda: Both(lambda: nn.SAGEConv(WIDTH, 4)),
    "GINConv": lambda: Both(_gin),
    "GCNConv": lambda: Both(lambda: nn.GCNConv(WIDTH, 4)),
    "GCNConv, weights": lambda: Both(lambda: nn.GCNConv(WIDTH, 4), "edge_weight"),
    "ChebConv": lambda: Both(lambda: nn.ChebConv(WIDTH, 4, K=3), "edge_weight"),
    "GATConv": lambda: Both(lambda: nn.GATConv(WIDTH, 4, heads=2, edge_dim=3), "edge_attr"),
    "GATConv, max": lambda: Both(lambda: nn.GATConv(WIDTH, 4, edge_dim=3, aggr="max"), "edge_attr"),
    "GATv2Conv": lambda: Both(lambda: nn.GATv2Conv(WIDTH, 4, heads=2, edge_dim=3), "edge_attr"),
    "DirGNNConv, SAGE": lambda: nn.DirGNNConv(nn.SAGEConv(WIDTH, 4)),
    "DirGNNConv, GCN": lambda: nn.DirGNNConv(nn.GCNConv(WIDTH, 4)),
    "DirGNNConv, GAT": lambda: nn.DirGNNConv(nn.GATConv(WIDTH, 4)),
    "a class of one's own": lambda: Both(Farthest, "edge_weight"),
    "degrees": Degrees,
    "layers in a layer": lambda: Both(Nested),
}


def _made(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]()


def _run(model: torch.nn.Module, graph: Any) -> tuple[torch.Tensor, list[Any]]:
    """Return the rows, and the gradients of x, of the arrays of the edges and of the parameters."""
    x = graph.x.clone().requires_grad_()
    names = getattr(model, "names", ())
    arrays = {name: getattr(graph, name).requires_grad_() for name in names}
    out = model(x, graph.edge_index, **arrays)
    torch.autograd.backward((out * torch.arange(1.0, out.shape[1] + 1).sqrt()).tanh().sum())
    grads = (one.grad for one in (x, *arrays.values(), *model.parameters()))
    return out.detach(), [grad for grad in grads if grad is not None]


@pytest.mark.parametrize("name", MODELS)
def test_both_directions_are_exact(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Rows, and gradients of x, of weights and features of edges, of parameters; the check by numbers sees it too."""
    model = _made(name)
    num_arrays = len(getattr(model, "names", ()))
    out, (of_x, *grads) = _run(copy.deepcopy(model), copy.deepcopy(WHOLE))

    def work(part: GraphPart) -> None:
        found, (own, *others) = _run(ug.distribute(copy.deepcopy(model), part), part)
        torch.testing.assert_close(found, out[part.owned], rtol=0, atol=1e-10)
        torch.testing.assert_close(own, of_x[part.owned], rtol=0, atol=1e-10)
        for one, expected in zip(others[:num_arrays], grads, strict=False):
            torch.testing.assert_close(one, expected[part.edge_ids], rtol=0, atol=1e-10)
        for one, expected in zip(others[num_arrays:], grads[num_arrays:], strict=True):
            torch.testing.assert_close(ug.sum_ranks(one, part), expected, rtol=0, atol=1e-10)

    for size, owner in ((1, None), (2, None), (3, WITHOUT_EDGES), (4, None)):
        on_parts(WHOLE, size, work, owner)
    assert "is not checked" not in caplog.text


def test_a_reversed_part_has_the_edges_out_of_its_nodes() -> None:
    """Each once, in an order that is the same on any number of parts, with the place in the user's list."""
    order = np.lexsort([np.arange(140), WHOLE.edge_index[1].numpy(), WHOLE.edge_index[0].numpy()])
    expected = torch.cat([WHOLE.edge_index.flip(0), torch.arange(140)[None]])[:, order]

    def work(part: GraphPart) -> torch.Tensor:
        turn = part.turn()
        assert part.edge_ids is not None
        nodes = torch.cat([part.owned, torch.from_numpy(turn.fields["arrays"].halo)])
        assert torch.equal(turn.fields["exchange"].matmat(part.owned), nodes)
        ends, ids = nodes[turn.fields["edge_index"]], turn.edges.matmat(part.edge_ids)
        assert torch.equal(turn.edges.rmatmat(ids), part.edge_ids)
        assert bool((ends[1].diff() != 0).sum() < part.num_owned), "not by target"
        return torch.cat([ends, ids[None]])

    for size in (1, 2, 4):
        found = torch.cat(on_parts(WHOLE, size, work), 1)
        assert torch.equal(found[:, found[1].sort(stable=True).indices], expected)


NETS: dict[str, Callable[[], Net]] = {
    "attention": lambda: Net(_added, nn.GATConv(WIDTH, 3, heads=2, concat=False, dropout=0.5)),
    "messages of attention": lambda: Net(_added, nn.GATConv(WIDTH, 3, dropout=0.5, aggr="max")),
    "weights of edges and loops": lambda: Net(
        lambda net, x, edges: net.conv(net.linear(x)[:, :3], edges.flip(0)), nn.APPNP(3, 0.1, dropout=0.5)
    ),
}


def _added(net: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    return net.conv(x, edges) + net.conv(x, edges.flip(0))


@pytest.mark.parametrize("name", NETS)
def test_dropout_against_the_edges_does_not_depend_on_the_number_of_ranks(name: str) -> None:
    """What is dropped of an edge follows from its ends."""
    torch.manual_seed(0)
    net = NETS[name]()
    alone = train(net, 1)
    for size in (2, 3):
        np.testing.assert_allclose(train(net, size), alone, rtol=0, atol=1e-10)


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
    """Whatever has turned them, in the model or before it; a copy of the edges is no flip."""
    torch.manual_seed(0)
    model = nn.GCN(WIDTH, WIDTH, 2, 4)
    expected = model(GRAPHS[name].x, edges(GRAPHS[name].edge_index))

    def work(part: GraphPart) -> None:
        found = ug.distribute(copy.deepcopy(model), part)(part.x, edges(part.edge_index))
        torch.testing.assert_close(found, expected[part.owned], rtol=0, atol=1e-10)

    on_parts(GRAPHS[name], 3, work, WITHOUT_EDGES)


def test_weights_of_edges_that_change_are_seen() -> None:
    """Those of the part travel once, until somebody writes to them."""
    torch.manual_seed(0)
    model = nn.GCNConv(WIDTH, 4, normalize=False)
    expected = model(WHOLE.x, WHOLE.edge_index.flip(0), WHOLE.edge_weight).detach()

    def work(part: GraphPart) -> None:
        distributed = ug.distribute(copy.deepcopy(model), part)
        assert part.edge_weight is not None
        for factor in (1, 2, 2):
            with torch.no_grad():
                found = distributed(part.x, part.edge_index.flip(0), part.edge_weight) / factor
            torch.testing.assert_close(found, expected[part.owned], rtol=0, atol=1e-10)
            part.edge_weight.mul_(2 / factor)

    on_parts(WHOLE, 3, work)


class Inside(nn.MessagePassing):  # type: ignore[misc]
    """Turns the edges round itself, where no argument of a layer shows them."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.propagate(edge_index.flip(0), x=x)


class Twice(nn.MessagePassing):  # type: ignore[misc]
    """Takes two lists of edges."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, others: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x) + self.propagate(others, x=x)


class Scores(nn.MessagePassing):  # type: ignore[misc]
    """Takes an array of the edges whose name does not tell."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, scores: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x * scores.sum())


def _without_some(part: GraphPart) -> torch.Tensor:
    return part.edge_index.flip(0)[:, part.rank + 1 :]


def _written(part: GraphPart) -> torch.Tensor:
    part.edge_index[0] = part.edge_index[0].flip(0)
    return part.edge_index.flip(0)


#: A layer, what it is called with beside rows, and what the refusal says.
REFUSED: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[GraphPart], tuple[Any, ...]], str]] = {
    "inside of a layer": (Inside, lambda part: (part.edge_index,), "as an argument of a layer"),
    "both": (Twice, lambda part: (part.edge_index, part.edge_index.flip(0)), "and other edges: call it twice"),
    "attention": (
        lambda: nn.GATConv(WIDTH, 4), lambda part: (part.edge_index.flip(0), None, None, True), "expected rows of nodes"
    ),
    "some edges": (
        lambda: nn.SAGEConv(WIDTH, 4), lambda part: (_without_some(part),), "with all edges and no others"
    ),
    "written": (lambda: nn.SAGEConv(WIDTH, 4), lambda part: (_written(part),), "the edges that were loaded"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_exact_is_refused(name: str) -> None:
    """In one line, which says what is expected."""
    make, given, expected = REFUSED[name]

    def work(part: GraphPart) -> None:
        layer = ug.distribute(make().double(), part, check=False)
        with pytest.raises(SpecError, match=expected) as raised:
            layer(part.x, *given(part))
        assert "\n" not in str(raised.value)

    on_parts(WHOLE, 2, work)


def test_as_many_edges_as_nodes() -> None:
    """On every rank: then the name of an argument tells, or it is refused."""
    whole = make_whole(40, 40)
    layer = nn.GCNConv(WIDTH, 4)
    expected = layer(whole.x, whole.edge_index.flip(0), whole.edge_weight)

    def work(part: GraphPart) -> None:
        found = ug.distribute(copy.deepcopy(layer), part)(part.x, part.edge_index.flip(0), part.edge_weight)
        torch.testing.assert_close(found, expected[part.owned], rtol=0, atol=1e-10)
        with pytest.raises(SpecError, match="scores: has a row for each edge"):
            ug.distribute(Scores(), part, check=False)(part.x, part.edge_index.flip(0), part.edge_weight)

    on_parts(whole, 1, work)


def test_predictions_against_the_edges() -> None:
    """A whole model's are exact; a block has no edges out of its nodes, so a layer of a list is refused."""
    torch.manual_seed(0)
    model = nn.DirGNNConv(nn.SAGEConv(WIDTH, 4)).eval()
    expected = model(WHOLE.x, WHOLE.edge_index)

    def work(part: GraphPart) -> None:
        found = ug.predict(ug.distribute(copy.deepcopy(model), part), part)
        torch.testing.assert_close(found, expected[part.owned], rtol=0, atol=1e-10)
        with pytest.raises(SpecError, match="block"):
            ug.predict([model], part)

    on_parts(WHOLE, 2, work)


class WithoutLoops(torch.nn.Module):
    """Makes new edges on the ranks alone whose edges have loops."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.SAGEConv(WIDTH, 4)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        if contains_self_loops(edge_index):
            edge_index, _ = remove_self_loops(edge_index)
        return self.conv(x, edge_index)


def test_ranks_that_change_their_edges_may_be_some_of_all() -> None:
    """Which edges a layer is called with is then no question to the other ranks."""
    model = WithoutLoops()
    loop = torch.zeros(2, 1, dtype=torch.int64)  # of node 0, which rank 0 owns
    ends = torch.cat([loop, WHOLE.edge_index[:, WHOLE.edge_index[0] != WHOLE.edge_index[1]]], 1)
    graph = replace(WHOLE.graph, **edges_as_given(ends[0].numpy(), ends[1].numpy(), len(WHOLE.x))._asdict())
    expected = model(WHOLE.x, ends)

    def work(part: GraphPart) -> None:
        found = ug.distribute(copy.deepcopy(model), part)(part.x, part.edge_index)
        torch.testing.assert_close(found, expected[part.owned], rtol=0, atol=1e-10)

    on_parts(replace(WHOLE, graph=graph), 3, work)
