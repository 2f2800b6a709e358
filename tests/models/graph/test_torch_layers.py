"""PyG's layers on parts of a directed, weighted graph: exact, or refused; sums and attention without messages.

With `UPDATE_DOCS=1` in the environment the table of docs/graph-layers.md is written anew.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch_geometric import nn
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv, conv
from torch_geometric.nn.aggr import Aggregation, MedianAggregation, QuantileAggregation
from torch_geometric.utils import add_self_loops, degree
from typing_extensions import override

from models.graph.layers_of_pyg import BY_NUMBERS, CASES, WIDTH, Case, E, attributed, check_exact, weighted
from models.graph.torch_parts import PARTS, UNEVEN, WHOLE, each_part, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.operators.edges import order_edges
from unilaunch_graph.operators.halo_edges import Neighbours
from unilaunch_graph.operators.row_blocks import make_pool
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.refusals import CLASSES

PAGE = Path(__file__).parents[3] / "docs" / "graph-layers.md"
pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.filterwarnings("ignore:We do not recommend using the non-optimized CPU version of `SplineConv`")
@pytest.mark.parametrize(("case", "owner"), [
    *((case, None) for case in CASES.values()),
    *((CASES[name], UNEVEN) for name in ("GATConv", "GCNConv", "CGConv", "TAGConv", "PNAConv")),
    (Case(lambda: nn.SAGEConv(WIDTH, 4, aggr=[MedianAggregation(), QuantileAggregation(0.3), "max"])), UNEVEN),
    (Case(lambda: nn.SAGEConv(WIDTH, 4, aggr=["median", "softmax", "powermean"])), UNEVEN),
], ids=[*CASES, *(f"a part without edges {place}" for place in range(7))])  # fmt: skip
def test_a_convolution_is_exact_on_parts(case: Case, owner: Any) -> None:
    """Rows and all gradients are those of PyG in one process; PyG's quantiles fail where the first node has no edge."""
    check_exact(case, owner)


@pytest.mark.parametrize("name", BY_NUMBERS)
@each_part(1)
def test_a_convolution_is_refused_by_its_numbers(part: GraphPart, name: str) -> None:
    """On one rank, where it is exact, `distribute` gives a warning."""
    case = BY_NUMBERS[name]
    check: Any = partial(ug.check, case.make(), part)
    with pytest.raises(SpecError, match=f"{name} is not exact on parts of a graph"):
        case.call(check, part.x, part)


def test_the_table_in_the_docs_names_every_class_that_is_not_exact() -> None:
    refused = {*conv.__all__} - {*CASES, *BY_NUMBERS, "MessagePassing"}
    assert all(getattr(conv, name) in CLASSES for name in refused)
    rows = [
        f"| {verdict} | {', '.join(f'`{name}`' for name in conv.__all__ if name in classes)} |\n"
        for verdict, classes in {"by its name": refused, "by its numbers": BY_NUMBERS}.items()
    ]
    head, begin, rest = PAGE.read_text().partition("<!-- table -->\n")
    _, end, tail = rest.partition("<!-- end of the table -->")
    page = "".join([head, begin, "| refused | layers |\n|---|---|\n", *rows, end, tail])
    if "UPDATE_DOCS" in os.environ:  # noqa: TID251
        PAGE.write_text(page)
    assert PAGE.read_text() == page


class _Plain(nn.MessagePassing):  # type: ignore[misc]  # PyG ships no types
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x)


class _Tutorial(nn.MessagePassing):  # type: ignore[misc]
    # of PyG's tutorial "Creating Message Passing Networks"
    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.lin = torch.nn.Linear(WIDTH, 4, bias=False)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        row, col = edge_index
        scale = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
        return self.propagate(edge_index, h=self.lin(x), norm=scale[row] * scale[col])

    def message(self, h_j: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        return norm.view(-1, 1) * h_j


class _Updated(_Plain):
    def update(self, inputs: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return inputs + x


class _Aggregated(_Plain):
    def aggregate(self, inputs: torch.Tensor, index: torch.Tensor, dim_size: Any = None) -> Any:
        return self.aggr_module(inputs.abs(), index, dim_size=dim_size, dim=self.node_dim)


class _Doubled(nn.SAGEConv):  # type: ignore[misc]
    def message(self, x_j: torch.Tensor) -> torch.Tensor:
        return 2 * x_j


class _Sharper(GATConv):  # type: ignore[misc]
    def message(self, x_j: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        return alpha.square().unsqueeze(-1) * x_j


def _of(function: Callable[..., torch.Tensor], aggr: str = "sum") -> Case:
    class Own(nn.MessagePassing):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(aggr=aggr)
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> Any:
            return self.propagate(edge_index, x=x, weight=edge_weight)

        def message(self, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return function(self, x_j, weight)

    return Case(Own, weighted)


class _Cube(torch.autograd.Function):
    """A function of the user's own, which torch calls with the tensor as it is."""

    @staticmethod
    @override
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        return 0 * rows[:] - (0 - rows) ** 3

    @staticmethod
    @override
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


cube: Any = _Cube.apply


def _changed(make: Callable[[], Any], change: Callable[[Any], object], call: Any = Case.call) -> Case:
    def changed() -> Any:
        layer = make()
        change(layer)
        return layer

    return Case(changed, call)


def _tripled(*given: Any) -> Any:
    return 3 * given[-1]


def _attention(kind: Any, **options: Any) -> Case:
    call = attributed if "edge_dim" in options else Case.call
    return Case(lambda: kind(WIDTH, 3, **{"heads": 2} | options), call)


SAGE, GAT = partial(nn.SAGEConv, WIDTH, 4), partial(GATConv, WIDTH, 3)
SUMS: dict[str, Case] = {
    "sage": Case(SAGE),
    "sage, sum": Case(partial(SAGE, aggr="sum", project=True)),
    "gin": Case(lambda: nn.GINConv(torch.nn.Linear(WIDTH, 4), train_eps=True)),
    "graph, weights": Case(lambda: nn.GraphConv(WIDTH, 4), weighted),
    "graph, weights, mean": Case(lambda: nn.GraphConv(WIDTH, 4, aggr="mean"), weighted),
    "gcn": Case(lambda: nn.GCNConv(WIDTH, 4)),
    "gcn, weights": Case(lambda: nn.GCNConv(WIDTH, 4, improved=True), weighted),
    "gcn, cached": Case(lambda: nn.GCNConv(WIDTH, 4, cached=True), weighted),
    "gcn, called before": _changed(
        lambda: nn.GCNConv(WIDTH, 4, cached=True), lambda gcn: gcn(WHOLE.x, WHOLE.edge_index)),
    **{name: CASES[name] for name in ("SSGConv", "GCN2Conv", "LGConv", "MixHopConv")},
    "PyG's default message": Case(_Plain),
    "the tutorial's GCN": Case(_Tutorial),
    "another update": Case(_Updated),
    "edges made anew": Case(SAGE, lambda layer, x, g: layer(x, add_self_loops(g.edge_index, num_nodes=len(x))[0])),
    "two numbers of each edge": _of(
        lambda _, rows, weight: weight.sin().unsqueeze(-1) * (rows * weight[:, None]), "mean"),
    "small whole numbers of each edge": _of(
        lambda _, rows, weight: (small := (100 * weight).to(torch.uint8)[:, None]) * (rows * small)),
    "samples": Case(lambda: nn.GraphConv(WIDTH, 4), lambda layer, x, g: weighted(
        layer, torch.stack([x, x.sin(), 2 * x, x * x]).view(2, 2, *x.shape), g).movedim(-2, 0)),
    "gat": _attention(GATConv),
    "gat, the mean of heads": _attention(GATConv, heads=4, concat=False, bias=False),
    "gat, residual": _attention(GATConv, residual=True, negative_slope=0.1),
    "gat, no loops": _attention(GATConv, heads=1, add_self_loops=False),
    "gat, edge features": _attention(GATConv, edge_dim=E, fill_value="mean"),
    "gat, edge features, add": _attention(GATConv, edge_dim=E, fill_value="add"),
    "gatv2, shared weights": _attention(GATv2Conv, share_weights=True, residual=True),
    "gatv2, no loops": _attention(GATv2Conv, add_self_loops=False, negative_slope=0.1),
    "gatv2, edge features, add": _attention(GATv2Conv, edge_dim=E, fill_value="add", concat=False, residual=True),
    "gatv2, an edge feature": Case(
        lambda: GATv2Conv(WIDTH, 3, edge_dim=1), lambda layer, x, g: layer(x, g.edge_index, g.edge_attr[:, 0])),
    "transformer, no root weight": _attention(TransformerConv, root_weight=False),
    "transformer, edge features, beta": _attention(TransformerConv, edge_dim=E, beta=True, concat=False),
}  # fmt: skip
MESSAGES: dict[str, Case] = {
    "another message": Case(lambda: _Doubled(WIDTH, 4)),
    "another aggregate": Case(_Aggregated),
    "the largest": Case(partial(SAGE, aggr="max")),
    "a hook on messages": _changed(SAGE, lambda layer: layer.register_message_forward_hook(_tripled)),
    "a hook on the aggregation": _changed(SAGE, lambda layer: layer.aggr_module.register_forward_hook(_tripled)),
    "a replaced message": _changed(SAGE, lambda layer: setattr(layer, "message", lambda x_j: x_j.abs())),
    "weights that are learned": Case(lambda: nn.GraphConv(WIDTH, 4), lambda layer, x, g: layer(
        x, g.edge_index, g.edge_weight.clone().requires_grad_())),
    "a number that the layer learns": _of(lambda layer, rows, _: layer.scale * rows),
    "a number of each column": _of(lambda _, rows, __: rows * torch.arange(WIDTH)),
    "a nonlinear message": _of(lambda _, rows, weight: (rows * weight[:, None]).relu()),
    "not linear on some edges": _of(lambda _, rows, weight: torch.where(weight[:, None] > 1.4, rows.abs(), rows)),
    "no gradient": _of(lambda _, rows, __: rows.detach() + 0 * rows),
    "mixed columns": _of(lambda _, rows, __: rows.flip(1)),
    "a sum": _of(lambda _, rows, weight: rows + weight[:, None]),
    "a write": _of(lambda _, rows, weight: weight[:, None] * rows + rows.mul_(3)),
    "a look": _of(lambda _, rows, __: rows if rows.isfinite().all() else -rows),
    "a look at a product": _of(lambda _, rows, weight: rows if (rows * weight[:, None]).isfinite().all() else -rows),
    "a dropout that is off": _of(lambda _, rows, __: torch.dropout(rows, 0.5, False)),
    "a function of the user's": _of(lambda _, rows, weight: cube(rows * weight[:, None])),
    "the function and a sum": _of(lambda _, rows, weight: cube(product := rows * weight[:, None]) + product + rows),
    "gat, a class of the user's": Case(lambda: _Sharper(WIDTH, 3)),
    "gat, a hook": _changed(GAT, lambda layer: layer.register_edge_update_forward_hook(_tripled)),
    "gat, a hook on lin": _changed(GAT, lambda gat: gat.lin.register_forward_hook(_tripled)),
    "gat, a learned fill_value": _attention(GATConv, heads=1, edge_dim=E, fill_value=torch.nn.Parameter(torch.ones(3))),
    "gat, a pair of rows": Case(GAT, lambda layer, x, g: layer((x, x), g.edge_index)),
    "gat, weights returned": Case(GAT, lambda layer, x, g: layer(x, g.edge_index, return_attention_weights=True)[0]),
    "gat, other edges": Case(GAT, lambda layer, x, g: layer(x, g.edge_index.clone())),
    "gatv2, a pair of widths": Case(
        lambda: GATv2Conv((WIDTH, WIDTH), 3), lambda layer, x, g: layer((x, x.tanh()), g.edge_index)),
}  # fmt: skip


def num_aggregations(case: Case) -> int:
    """Return how often PyG aggregates messages in two calls of the layer on each part."""
    calls, layers = [], [case.make() for _ in range(PARTS)]

    def work(part: GraphPart) -> None:
        layer = distribute(layers[part.rank], part, check=False)  # the check makes PyG's messages on its small graph
        for _ in range(2):
            case.call(layer, part.x, part)

    hook = register_module_forward_pre_hook(lambda one, _: calls.append(one) if isinstance(one, Aggregation) else None)
    on_parts(WHOLE, PARTS, work)
    hook.remove()
    return len(calls)


@pytest.mark.parametrize("name", SUMS)
def test_a_layer_that_sums_rows_makes_no_messages(name: str) -> None:
    """Nor does attention; rows and gradients are PyG's, also where a part has no edges, and another one no nodes."""
    check_exact(SUMS[name], UNEVEN, check=False, learned=["edge_attr"] if "edge feature" in name else [])
    assert num_aggregations(SUMS[name]) == 0


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_made_where_the_sum_is_another(name: str) -> None:
    """A class, a module, a hook or an argument of the user's changes what is summed."""
    check_exact(MESSAGES[name])
    assert num_aggregations(MESSAGES[name]) >= 2 * PARTS


WRITES: dict[str, Callable[[Any], object]] = {
    "edges": lambda part: part.edge_index[0].copy_(part.edge_index[0].flip(0)),
    "weights": lambda part: part.edge_weight.square_(),
    "weights of one rank": lambda part: part.edge_weight.square_() if part.rank == 1 else None,
    "data, which is no write to torch": lambda part: setattr(part.edge_weight, "data", part.edge_weight * 3),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", [nn.GraphConv, nn.GCNConv])
@each_part()
def test_edges_that_were_written_to_are_read_again(part: Any, kind: Any, write: str) -> None:
    """What was made of the edges and weights before is not used again; by a layer of our own neither."""
    layer, own = distribute(kind(WIDTH, 4), part), ug.SAGEConv(WIDTH, 4)
    first, _ = layer(part.x, part.edge_index, part.edge_weight), own(part.x, part)
    WRITES[write](part)
    again = layer(part.x, part.edge_index, part.edge_weight)
    copied = replace(part, edge_index=part.edge_index.clone(), edge_weight=part.edge_weight.clone())
    torch.testing.assert_close(again, layer(part.x, copied.edge_index, copied.edge_weight), rtol=0, atol=1e-12)
    assert (again - first).abs().max() > 1e-3 or write == "weights of one rank"
    torch.testing.assert_close(own(part.x, part), own(part.x, copied))


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv, TransformerConv])
@each_part(1)
def test_features_of_other_edges_are_an_error(part: GraphPart, kind: type[torch.nn.Module]) -> None:
    """Those of the whole graph on a part: PyG says so, and the first of them are not taken."""
    loops = {} if kind is TransformerConv else {"add_self_loops": False}
    layer = distribute(kind(WIDTH, 3, edge_dim=2, **loops), part, check=False)
    layer(part.x, part.edge_index, torch.rand(part.edge_index.shape[1], 2))
    with pytest.raises(RuntimeError, match="must match the size"):
        layer(part.x, part.edge_index, torch.rand(part.edge_index.shape[1] + 7, 2))


@pytest.mark.system
@pytest.mark.parametrize("num_edges", [500, 1 << 17], ids=["portable", "C"])
def test_weighted_means_and_their_transpose_are_those_of_scipy(num_edges: int) -> None:
    """In float32, from edges in any order, with sources that stand twice and targets without edges."""
    draw, num_owned, num_sources = np.random.default_rng(0), 300, 400
    ends = np.stack([draw.integers(0, num_sources, num_edges), draw.integers(0, num_owned - 20, num_edges)])
    weights = draw.standard_normal(num_edges).astype(np.float32)
    chosen = order_edges(ends, num_owned, num_sources)
    ours = Neighbours(chosen.edges, np.dtype(np.float32), make_pool(2), weights[chosen.places], mean=True)
    matrix = sp.csr_array((weights.astype(np.float64), (ends[1], ends[0])), shape=(num_owned, num_sources))
    matrix = sp.diags_array(1 / np.maximum(np.bincount(ends[1], minlength=num_owned), 1)) @ matrix
    rows, gradients = (draw.standard_normal((size, 20)).astype(np.float32) for size in (num_sources, num_owned))
    np.testing.assert_allclose(ours.matmat(rows), matrix @ rows, rtol=0, atol=1e-3)
    np.testing.assert_allclose(ours.rmatmat(gradients), matrix.T @ gradients, rtol=0, atol=1e-3)
