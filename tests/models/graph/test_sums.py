"""Layers that sum rows under `distribute`: a product with the matrix of the edges, or messages where it must be."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric import nn
from torch_geometric.nn.aggr import MaxAggregation, MeanAggregation, MultiAggregation, SumAggregation
from torch_geometric.utils import add_self_loops, degree
from typing_extensions import override

from models.graph.layers_of_pyg import CASES, Case
from models.graph.test_torch_layers import PARTS, WHOLE, WITHOUT_EDGES, check_exact
from models.graph.test_users_classes import WITHOUT_NODES
from models.graph.torch_parts import make_whole, on_parts
from unilaunch_graph.operators.edges import order_edges
from unilaunch_graph.operators.halo_edges import Neighbours
from unilaunch_graph.operators.row_blocks import make_pool
from unilaunch_graph.torch import GATConv, SAGEConv
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.layers import made_of
from unilaunch_graph.torch.part import GraphPart

WIDTH = 8
pytestmark = pytest.mark.usefixtures("float64")


class _Plain(nn.MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """The message is PyG's default."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Sum."""
        out: torch.Tensor = self.propagate(edge_index, x=x)
        return out


class _Doubled(nn.SAGEConv):  # type: ignore[misc]
    @override
    def message(self, x_j: torch.Tensor) -> torch.Tensor:
        return 2 * x_j


class _Tutorial(nn.MessagePassing):  # type: ignore[misc]
    """The layer of PyG's tutorial "Creating Message Passing Networks"."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.lin = torch.nn.Linear(WIDTH, 4, bias=False)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        row, col = edge_index
        scale = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
        out: torch.Tensor = self.propagate(edge_index, h=self.lin(x), norm=scale[row] * scale[col])
        return out

    def message(self, h_j: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        return norm.view(-1, 1) * h_j


def _of(function: Callable[..., torch.Tensor], aggr: str = "sum") -> Callable[[], Any]:
    """Return a class whose message is a function of the layer, the rows and the weights."""

    class Own(nn.MessagePassing):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(aggr=aggr)
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.propagate(edge_index, x=x, weight=edge_weight)
            return out

        def message(self, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return function(self, x_j, weight)

    return Own


class _Cube(torch.autograd.Function):
    """A function of the user's own, which torch calls with the tensor as it is."""

    @staticmethod
    @override
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        return rows**3

    @staticmethod
    @override
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (rows,) = ctx.saved_tensors
        out: torch.Tensor = 3 * rows**2 * gradient
        return out


def _cube(_: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _Cube.apply(rows * weight[:, None])  # type: ignore[no-untyped-call]
    return out


@torch.jit.script
def _scripted(rows: torch.Tensor) -> torch.Tensor:
    return rows.sin() * 2


def _in_place(_: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    scaled = weight[:, None] * rows
    rows *= 3
    return scaled + rows


def _keep(layer: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    layer.kept = rows * weight[:, None]
    assert layer.kept.isfinite().all()
    return rows


class _Updated(_Plain):
    @override
    def update(self, inputs: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return inputs + x


class _Aggregated(_Plain):
    @override
    def aggregate(self, inputs: torch.Tensor, index: torch.Tensor, dim_size: Any = None) -> torch.Tensor:
        out: torch.Tensor = self.aggr_module(inputs.abs(), index, dim_size=dim_size, dim=self.node_dim)
        return out


def _weighted(layer: Any, x: torch.Tensor, g: Any) -> torch.Tensor:
    out: torch.Tensor = layer(x, g.edge_index, g.edge_weight)
    return out


def _learned(layer: Any, x: torch.Tensor, g: Any) -> torch.Tensor:
    return _weighted(layer, x, _With(g, edge_weight=g.edge_weight.clone().requires_grad_()))


def _own_edges(layer: Any, x: torch.Tensor, g: Any) -> torch.Tensor:
    out: torch.Tensor = layer(x, add_self_loops(g.edge_index, num_nodes=len(x))[0])
    return out


def _samples(layer: Any, x: torch.Tensor, g: Any) -> torch.Tensor:
    """Two times three samples of features stand before the nodes: (2, 3, nodes, width)."""
    samples = torch.stack([x, x.sin(), 2 * x, x * x, x + 1, -x]).reshape(2, 3, *x.shape)
    return _weighted(layer, samples, g).movedim(-2, 0)


class _With:
    """A graph, some of whose attributes are others."""

    def __init__(self, graph: Any, **others: Any) -> None:
        self.graph, self.others = graph, others

    def __getattr__(self, name: str) -> Any:
        return self.others[name] if name in self.others else getattr(self.graph, name)


def _hooked() -> Any:
    layer = nn.SAGEConv(WIDTH, 4)
    layer.register_message_forward_hook(lambda _, __, messages: 3 * messages)
    return layer


def _hooked_aggregation() -> Any:
    layer = nn.SAGEConv(WIDTH, 4)
    layer.aggr_module.register_forward_hook(lambda _, __, out: 3 * out)
    return layer


def _replaced() -> Any:
    layer = nn.SAGEConv(WIDTH, 4)
    layer.message = lambda x_j: x_j.abs()
    return layer


SUMS = {
    "sage": Case(lambda: nn.SAGEConv(WIDTH, 4)),
    "sage, sum": Case(lambda: nn.SAGEConv(WIDTH, 4, aggr="sum", project=True)),
    "gin": Case(lambda: nn.GINConv(torch.nn.Linear(WIDTH, 4), train_eps=True)),
    "graph, weights": Case(lambda: nn.GraphConv(WIDTH, 4), _weighted),
    "graph, weights, mean": Case(lambda: nn.GraphConv(WIDTH, 4, aggr="mean"), _weighted),
    "gcn": Case(lambda: nn.GCNConv(WIDTH, 4)),
    "gcn, weights": Case(lambda: nn.GCNConv(WIDTH, 4, improved=True), _weighted),
    "gcn, cached": Case(lambda: nn.GCNConv(WIDTH, 4, cached=True), _weighted),
    **{name: CASES[name] for name in ("SSGConv", "GCN2Conv", "LGConv", "MixHopConv")},
    "PyG's default message": Case(_Plain),
    "the tutorial's GCN": Case(_Tutorial),
    "another update": Case(_Updated),
    "edges that are made anew": Case(lambda: nn.SAGEConv(WIDTH, 4), _own_edges),
    "two numbers of each edge": Case(
        _of(lambda _, rows, weight: weight.sin().unsqueeze(-1) * (rows * weight[:, None]), "mean"), _weighted
    ),
    "whole numbers of each edge": Case(_of(lambda _, rows, weight: torch.mul(rows, weight.long()[:, None])), _weighted),
    "rows of which some are looked at": Case(_of(_keep), _weighted),
    "samples": Case(lambda: nn.GraphConv(WIDTH, 4), _samples),
    "samples, mean": Case(lambda: nn.SimpleConv(aggr="mean"), _samples),
}
MESSAGES = {
    "another message": Case(lambda: _Doubled(WIDTH, 4)),
    "another aggregate": Case(_Aggregated),
    "the largest": Case(lambda: nn.SAGEConv(WIDTH, 4, aggr="max")),
    "a hook on messages": Case(_hooked),
    "a message that replaced the layer's": Case(_replaced),
    "a hook on the aggregation": Case(_hooked_aggregation),
    "weights that are learned": Case(lambda: nn.GraphConv(WIDTH, 4), _learned),
    "a number that the layer learns": Case(_of(lambda layer, rows, _: layer.scale * rows), _weighted),
    "a number of each column": Case(_of(lambda _, rows, __: rows * torch.arange(WIDTH)), _weighted),
    "a nonlinear message": Case(_of(lambda _, rows, weight: (rows * weight[:, None]).relu()), _weighted),
    "a message that is not linear on some edges": Case(
        _of(lambda _, rows, weight: torch.where(weight[:, None] > 1.4, rows.abs(), rows)), _weighted
    ),
    "a message that stops the gradient": Case(_of(lambda _, rows, __: rows.detach() + 0 * rows), _weighted),
    "a message that mixes columns": Case(_of(lambda _, rows, __: rows.flip(1)), _weighted),
    "a message that adds": Case(_of(lambda _, rows, weight: rows + weight[:, None]), _weighted),
    "a message that is written to": Case(_of(_in_place), _weighted),
    "a message that is looked at": Case(_of(lambda _, rows, __: rows if rows.isfinite().all() else -rows), _weighted),
    "a dropout that is off": Case(_of(lambda _, rows, __: torch.dropout(rows, 0.5, False)), _weighted),
    "a function of the user's": Case(_of(_cube), _weighted),
    "a scripted function": Case(_of(lambda _, rows, weight: _scripted(rows) * weight[:, None]), _weighted),
}


def num_aggregations(case: Case) -> int:
    """Return how often PyG aggregates messages in two calls of the layer on each part."""
    calls: list[None] = []

    def counting(forward: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            calls.append(None)
            return forward(*given, **options)

        return counted

    def work(part: GraphPart) -> None:
        layer = distribute(case.make(), part, check=False)  # the check makes PyG's messages on its small graph
        for _ in range(2):
            case.call(layer, part.x, part)

    with pytest.MonkeyPatch.context() as patch:
        for kind in (SumAggregation, MeanAggregation, MaxAggregation, MultiAggregation):
            patch.setattr(kind, "forward", counting(kind.forward))
        on_parts(WHOLE, PARTS, work)
    return len(calls)


@pytest.mark.parametrize("owner", [WITHOUT_EDGES, WITHOUT_NODES], ids=["without edges", "without nodes"])
@pytest.mark.parametrize("name", SUMS)
def test_a_layer_that_sums_rows_makes_no_messages(name: str, owner: Any) -> None:
    """Its rows and gradients are PyG's."""
    check_exact(SUMS[name], owner)
    assert num_aggregations(SUMS[name]) == 0


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_made_where_the_sum_is_another(name: str) -> None:
    """A class, a module or a hook of the user's changes what is summed."""
    check_exact(MESSAGES[name])
    assert num_aggregations(MESSAGES[name]) >= 2 * PARTS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_half_precision_are_messages(dtype: torch.dtype) -> None:
    """The product has no kernel for them: the result is PyG's, and has their type."""

    def work(part: GraphPart) -> tuple[torch.dtype, int]:
        layer = distribute(nn.SAGEConv(WIDTH, 4).to(dtype), part)
        return layer(part.x.to(dtype), part.edge_index).dtype, len(made_of(part.edge_index))

    assert on_parts(WHOLE, PARTS, work) == [(dtype, 0)] * PARTS


def _write_edges(part: GraphPart) -> None:
    part.edge_index[0] = part.edge_index[0].flip(0)


def _write_weights(part: GraphPart) -> None:
    assert part.edge_weight is not None
    part.edge_weight.mul_(part.edge_weight)


def _write_data(part: GraphPart) -> None:
    assert part.edge_weight is not None
    part.edge_weight.data = part.edge_weight * 3  # which is no write to torch


@pytest.mark.parametrize("write", [_write_edges, _write_weights, _write_data])
@pytest.mark.parametrize("make", [lambda: nn.GraphConv(WIDTH, 4), lambda: nn.GCNConv(WIDTH, 4)])
def test_edges_that_were_written_to_are_read_again(make: Callable[[], Any], write: Callable[[Any], None]) -> None:
    """What was made of the edges and weights before is not used again; by a layer of our own neither."""

    def work(part: GraphPart) -> None:
        layer, own = distribute(make(), part), SAGEConv(WIDTH, 4)
        first, _ = layer(part.x, part.edge_index, part.edge_weight), own(part.x, part)
        write(part)
        assert part.edge_weight is not None
        copied = replace(part, edge_index=part.edge_index.clone(), edge_weight=part.edge_weight.clone())
        again = layer(part.x, part.edge_index, part.edge_weight)
        torch.testing.assert_close(again, layer(part.x, copied.edge_index, copied.edge_weight), rtol=0, atol=1e-12)
        assert (again - first).abs().max() > 1e-3
        torch.testing.assert_close(own(part.x, part), own(part.x, copied))

    on_parts(WHOLE, PARTS, work)


@pytest.mark.parametrize("make", [lambda: nn.GCNConv(WIDTH, 4), lambda: nn.GATConv(WIDTH, 4)])
def test_one_rank_alone_may_write_to_weights(make: Callable[[], Any]) -> None:
    """The ranks agree on what is computed again, and make as many exchanges, also a rank without in-edges."""

    def work(part: GraphPart) -> None:
        layer = distribute(make(), part)
        for _ in range(3):
            assert part.edge_weight is not None
            rows = layer(part.x, part.edge_index, part.edge_weight)
            copied = layer(part.x, part.edge_index.clone(), part.edge_weight.clone())
            torch.testing.assert_close(rows, copied, rtol=0, atol=1e-12)
            if part.rank == 1:
                part.edge_weight[:3] = 0.25

    on_parts(make_whole(num_sources_only=6), 2, work, np.arange(40) < 6)


def test_edges_in_another_order_are_the_same_graph() -> None:
    """Layers of our own, and PyG's without self-loops, take them as they are."""

    def work(part: GraphPart) -> None:
        order = torch.randperm(part.edge_index.shape[1], generator=torch.Generator().manual_seed(part.rank))
        attributes = part.edge_attr
        assert attributes is not None
        shuffled = replace(part, edge_index=part.edge_index[:, order], edge_attr=attributes[order])
        for layer in (SAGEConv(WIDTH, 4), GATConv(WIDTH, 4, add_self_loops=False, edge_dim=3).double()):
            torch.testing.assert_close(layer(part.x, shuffled), layer(part.x, part), rtol=0, atol=1e-12)

    on_parts(WHOLE, PARTS, work)


def test_second_derivatives_are_exact() -> None:
    """A gradient penalty takes the gradient of a gradient."""

    def penalty(layer: Any, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(layer(x, edge_index).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.pow(2).sum(), x)
        return second

    def work(part: GraphPart) -> None:
        layer = distribute(nn.SAGEConv(WIDTH, 4), part)
        by_messages = penalty(layer, part.x, part.edge_index.clone())
        torch.testing.assert_close(penalty(layer, part.x, part.edge_index), by_messages, rtol=0, atol=1e-9)

    on_parts(WHOLE, PARTS, work)


@pytest.mark.system
@pytest.mark.parametrize("num_edges", [500, 1 << 17], ids=["portable", "C"])
def test_weighted_means_and_their_transpose_are_those_of_scipy(num_edges: int) -> None:
    """In float32, from edges in any order, with sources that stand twice and targets without edges."""
    draw = np.random.default_rng(0)
    num_owned, num_sources = 300, 400
    ends = np.stack([draw.integers(0, num_sources, num_edges), draw.integers(0, num_owned - 20, num_edges)])
    weights = draw.standard_normal(num_edges).astype(np.float32)
    chosen = order_edges(ends, num_owned, num_sources)
    ours = Neighbours(
        chosen.edges, np.dtype(np.float32), make_pool(2), weights[chosen.places], mean=True
    )  # fmt: skip
    matrix = sp.csr_array((weights.astype(np.float64), (ends[1], ends[0])), shape=(num_owned, num_sources))
    matrix = sp.diags_array(1 / np.maximum(np.bincount(ends[1], minlength=num_owned), 1)) @ matrix
    rows, gradients = (draw.standard_normal((size, 20)).astype(np.float32) for size in (num_sources, num_owned))
    np.testing.assert_allclose(ours.matmat(rows), matrix @ rows, rtol=0, atol=1e-3)
    np.testing.assert_allclose(ours.rmatmat(gradients), matrix.T @ gradients, rtol=0, atol=1e-3)
