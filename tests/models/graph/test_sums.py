"""Layers that sum rows under `distribute`: a product with the matrix of the edges, or messages where it must be."""

from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric import nn
from torch_geometric.nn.aggr import MaxAggregation, MeanAggregation, MultiAggregation, SumAggregation
from torch_geometric.utils import add_self_loops
from typing_extensions import override

from models.graph.layers_of_pyg import CASES, Case
from models.graph.test_torch_layers import PARTS, WHOLE, WITHOUT_EDGES, check_exact
from models.graph.test_users_classes import WITHOUT_NODES
from models.graph.torch_parts import make_whole, on_parts
from unilaunch_graph.operators.edges import order_edges
from unilaunch_graph.operators.neighbours import Neighbours
from unilaunch_graph.operators.row_blocks import make_pool
from unilaunch_graph.torch import GATConv, SAGEConv, gather
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.layers import made_of
from unilaunch_graph.torch.part import GraphPart

WIDTH = 8


@pytest.fixture(autouse=True)
def _float64() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class _Plain(nn.MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """The message is PyG's default."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Sum."""
        out: torch.Tensor = self.propagate(edge_index, x=x)
        return out


class _Same(_Plain):
    @override
    def message(self, x_j: torch.Tensor) -> torch.Tensor:
        """Take the source's row."""
        return x_j


class _Doubled(nn.SAGEConv):  # type: ignore[misc]
    @override
    def message(self, x_j: torch.Tensor) -> torch.Tensor:
        return 2 * x_j


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


class _Propagated(nn.SAGEConv):  # type: ignore[misc]
    @override
    def propagate(self, edge_index: torch.Tensor, size: Any = None, **rows: Any) -> torch.Tensor:
        out: torch.Tensor = 2 * super().propagate(edge_index, size=size, **rows)
        return out


def _with_own_propagate() -> Any:
    layer = nn.SAGEConv(WIDTH, 4)

    def propagate(self: Any, edge_index: torch.Tensor, size: Any = None, **rows: Any) -> Any:
        return 2 * type(self).propagate(self, edge_index, size=size, **rows)

    layer.propagate = MethodType(propagate, layer)
    return layer


def _hooked_aggregation() -> Any:
    layer = nn.SAGEConv(WIDTH, 4)
    layer.aggr_module.register_forward_hook(lambda _, __, out: 3 * out)
    return layer


def _own_aggregation() -> Any:
    layer = nn.SAGEConv(WIDTH, 4)
    forward = layer.aggr_module.forward
    layer.aggr_module.forward = lambda *given, **options: 3 * forward(*given, **options)
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
    "gcn, no loops": Case(lambda: nn.GCNConv(WIDTH, 4, add_self_loops=False)),
    "sg": Case(lambda: nn.SGConv(WIDTH, 4, K=2)),
    "appnp": Case(lambda: nn.APPNP(K=3, alpha=0.1)),
    "tag": Case(lambda: nn.TAGConv(WIDTH, 4)),
    **{name: CASES[name] for name in ("SSGConv", "GCN2Conv", "LGConv", "MixHopConv")},
    "PyG's default message": Case(_Plain),
    "the same message in a user's class": Case(_Same),
}
MESSAGES = {
    "another message": Case(lambda: _Doubled(WIDTH, 4)),
    "another update": Case(_Updated),
    "another aggregate": Case(_Aggregated),
    "the largest": Case(lambda: nn.SAGEConv(WIDTH, 4, aggr="max")),
    "several aggregations": Case(lambda: nn.SAGEConv(WIDTH, 4, aggr=["sum", "mean"])),
    "a hook on messages": Case(_hooked),
    "a message that replaced the layer's": Case(_replaced),
    "another propagate": Case(lambda: _Propagated(WIDTH, 4)),
    "a propagate that replaced the layer's": Case(_with_own_propagate),
    "a hook on the aggregation": Case(_hooked_aggregation),
    "an aggregation that was replaced": Case(_own_aggregation),
    "weights that are learned": Case(lambda: nn.GraphConv(WIDTH, 4), _learned),
    "edges that are made anew": Case(lambda: nn.SAGEConv(WIDTH, 4), _own_edges),
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


@pytest.mark.parametrize("owner", [None, WITHOUT_EDGES, WITHOUT_NODES], ids=["", "without edges", "without nodes"])
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


@pytest.mark.parametrize("write", [_write_edges, _write_weights])
@pytest.mark.parametrize("make", [lambda: nn.GraphConv(WIDTH, 4), lambda: nn.GCNConv(WIDTH, 4)])
def test_edges_that_were_written_to_are_read_again(make: Callable[[], Any], write: Callable[[Any], None]) -> None:
    """What was made of the edges and weights before is not used again."""

    def work(part: GraphPart) -> None:
        layer = distribute(make(), part)
        first = layer(part.x, part.edge_index, part.edge_weight)
        write(part)
        assert part.edge_weight is not None
        by_messages = layer(part.x, part.edge_index.clone(), part.edge_weight.clone())
        again = layer(part.x, part.edge_index, part.edge_weight)
        torch.testing.assert_close(again, by_messages, rtol=0, atol=1e-12)
        assert (again - first).abs().max() > 1e-3

    on_parts(WHOLE, PARTS, work)


def test_layers_of_our_own_read_edges_again() -> None:
    """What they made of the edges before these were written to is not used again."""

    def work(part: GraphPart) -> None:
        layer = SAGEConv(WIDTH, 4)
        layer(part.x, part)
        _write_edges(part)
        again = layer(part.x, part)
        torch.testing.assert_close(again, layer(part.x, replace(part, edge_index=part.edge_index.clone())))

    on_parts(WHOLE, PARTS, work)


def test_weights_may_be_others_in_each_step() -> None:
    """A dropout of edges, say."""

    def work(part: GraphPart) -> None:
        layer = distribute(nn.GraphConv(WIDTH, 4), part)
        for seed in range(3):
            assert part.edge_weight is not None
            torch.manual_seed(seed)
            weights = torch.nn.functional.dropout(part.edge_weight, 0.5)
            expected = layer(part.x, part.edge_index.clone(), weights)
            torch.testing.assert_close(layer(part.x, part.edge_index, weights), expected, rtol=0, atol=1e-12)

    on_parts(WHOLE, 1, work)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_weights_may_have_another_type(dtype: torch.dtype) -> None:
    """They become the rows' type."""

    def work(part: GraphPart) -> None:
        layer = distribute(nn.GraphConv(WIDTH, 4), part)
        assert part.edge_weight is not None
        weights = (4 * part.edge_weight).to(dtype)
        expected = layer(part.x, part.edge_index.clone(), weights)
        torch.testing.assert_close(layer(part.x, part.edge_index, weights), expected, rtol=0, atol=1e-12)

    on_parts(WHOLE, 1, work)


def test_weights_that_a_layer_needs_are_missed() -> None:
    """As in PyG: it does not sum without weights."""

    class Weighted(_Plain):
        @override
        def message(self, x_j: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
            return edge_weight.view(-1, 1) * x_j

        @override
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.propagate(edge_index, x=x, edge_weight=None)
            return out

    def work(part: GraphPart) -> None:
        with pytest.raises(AttributeError, match="view"):
            distribute(Weighted(), part)(part.x, part.edge_index)

    on_parts(WHOLE, 1, work)


@pytest.mark.parametrize("make", [lambda: nn.GCNConv(WIDTH, 4), lambda: nn.GATConv(WIDTH, 4)])
def test_one_rank_alone_may_write_to_weights(make: Callable[[], Any]) -> None:
    """The ranks agree on what is computed again."""

    def work(part: GraphPart) -> Any:
        torch.manual_seed(0)
        layer = distribute(make(), part)
        rows = []
        for _ in range(3):
            rows.append(gather(layer(part.x, part.edge_index, part.edge_weight).detach(), part))
            assert part.edge_weight is not None
            if part.rank == 1:
                part.edge_weight[:3] = 0.25
        return rows

    results = on_parts(WHOLE, 2, work)[0]
    assert len(results) == 3


def test_a_copy_of_no_edges_is_a_copy() -> None:
    """A rank without in-edges makes as many exchanges as the others."""

    def work(part: GraphPart) -> None:
        for make in (nn.GCNConv, nn.GATConv, nn.GraphConv):
            layer = distribute(make(WIDTH, 4), part)
            edges = part.edge_index.clone()
            assert part.edge_weight is not None
            for weights in (None, part.edge_weight.clone()):
                rows = layer(part.x, edges, weights)
                torch.testing.assert_close(rows, layer(part.x, edges.clone(), weights), rtol=0, atol=1e-12)

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


@pytest.mark.parametrize("make", [nn.SAGEConv, nn.GCNConv, nn.GATConv])
def test_transforms_of_torch_run_on_messages(make: Callable[..., Any]) -> None:
    """On one rank torch.func works, and leaves nothing behind that breaks the next call."""

    def work(part: GraphPart) -> None:
        layer = distribute(make(WIDTH, 4), part)

        def loss(x: torch.Tensor) -> torch.Tensor:
            total: torch.Tensor = layer(x, part.edge_index).pow(2).sum()
            return total

        found = torch.func.grad(loss)(part.x)
        x = part.x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(x), x)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)

    on_parts(WHOLE, 1, work)


def test_weights_with_other_memory_are_read_again() -> None:
    """`weights.data = ...` is no write to torch."""

    def work(part: GraphPart) -> None:
        layer = distribute(nn.GraphConv(WIDTH, 4), part)
        weights = part.edge_weight
        assert weights is not None
        layer(part.x, part.edge_index, weights)
        weights.data = weights * 3
        expected = layer(part.x, part.edge_index.clone(), weights)
        torch.testing.assert_close(layer(part.x, part.edge_index, weights), expected, rtol=0, atol=1e-12)

    on_parts(WHOLE, 1, work)


def test_an_index_that_is_out_of_range_is_told() -> None:
    """The matrix is not made."""

    def work(part: GraphPart) -> None:
        layer = distribute(nn.SAGEConv(WIDTH, 4), part)
        part.edge_index[0, 0] = part.num_owned + part.num_halo
        with pytest.raises(IndexError, match="expected 0 to 39"):
            layer(part.x, part.edge_index)

    on_parts(WHOLE, 1, work)


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
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mean", [False, True])
def test_weighted_sums_and_their_transpose_are_those_of_scipy(num_edges: int, threads: int, mean: bool) -> None:  # noqa: FBT001
    """In float32, from edges in any order, with sources that stand twice and targets without edges."""
    draw = np.random.default_rng(0)
    num_owned, num_sources = 300, 400
    ends = np.stack([draw.integers(0, num_sources, num_edges), draw.integers(0, num_owned - 20, num_edges)])
    weights = draw.standard_normal(num_edges).astype(np.float32)
    chosen = order_edges(ends, num_owned, num_sources)
    ours = Neighbours(
        chosen.edges, np.dtype(np.float32), make_pool(threads), weights[chosen.places], mean=mean
    )  # fmt: skip
    matrix = sp.csr_array((weights.astype(np.float64), (ends[1], ends[0])), shape=(num_owned, num_sources))
    if mean:
        matrix = sp.diags_array(1 / np.maximum(np.bincount(ends[1], minlength=num_owned), 1)) @ matrix
    rows, gradients = (draw.standard_normal((size, 20)).astype(np.float32) for size in (num_sources, num_owned))
    np.testing.assert_allclose(ours.matmat(rows), matrix @ rows, rtol=0, atol=1e-3)
    np.testing.assert_allclose(ours.rmatmat(gradients), matrix.T @ gradients, rtol=0, atol=1e-3)
