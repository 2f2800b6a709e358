"""PyG's layers of attention under `distribute`: without messages, or with them where attention is another."""

from types import MethodType
from typing import Any

import pytest
import torch
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv
from typing_extensions import override

from models.graph.layers_of_pyg import Case
from models.graph.test_sums import num_aggregations
from models.graph.test_torch_layers import PARTS, WHOLE, WITHOUT_EDGES, check_exact
from models.graph.test_users_classes import WITHOUT_NODES
from models.graph.torch_parts import on_parts
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart

WIDTH, EDGE_WIDTH = 8, 3
pytestmark = pytest.mark.usefixtures("float64")


class _Mapped(torch.nn.Module):
    """A layer, whose edge features are learned."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer, self.map = layer, torch.nn.Linear(EDGE_WIDTH, 4)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x, edge_index, self.map(edge_attr))
        return out


class _Sharper(GATConv):  # type: ignore[misc]  # PyG ships no types
    @override
    def message(self, x_j: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        return alpha.square().unsqueeze(-1) * x_j


def _with_features(layer: Any, x: torch.Tensor, g: Any) -> Any:
    return layer(x, g.edge_index, g.edge_attr)


def _features(fill_value: Any) -> Case:
    return Case(lambda: GATConv(WIDTH, 3, heads=2, edge_dim=EDGE_WIDTH, fill_value=fill_value), _with_features)


def _hooked_linear(name: str) -> Any:
    layer = GATConv(WIDTH, 12, edge_dim=EDGE_WIDTH)
    getattr(layer, name).register_forward_hook(lambda _, __, rows: rows.tanh())
    return layer


def _with_own(name: str) -> Any:
    layer = GATConv(WIDTH, 3)

    def step(self: Any, *given: Any, **options: Any) -> Any:
        return 2 * getattr(type(self), name)(self, *given, **options)

    setattr(layer, name, MethodType(step, layer))
    return layer


def _hooked() -> Any:
    layer = GATConv(WIDTH, 3)
    layer.register_edge_update_forward_hook(lambda _, __, alpha: 3 * alpha)
    return layer


def _dynamic(**options: Any) -> Case:
    call = _with_features if "edge_dim" in options else Case.call
    return Case(lambda: GATv2Conv(WIDTH, 3, heads=2, **options), call)


def _transformer(**options: Any) -> Case:
    call = _with_features if "edge_dim" in options else Case.call
    return Case(lambda: TransformerConv(WIDTH, 3, heads=2, **options), call)


ATTENTION = {
    "heads": Case(lambda: GATConv(WIDTH, 3, heads=2)),
    "the mean of heads": Case(lambda: GATConv(WIDTH, 3, heads=4, concat=False, bias=False)),
    "residual": Case(lambda: GATConv(WIDTH, 3, heads=2, residual=True, negative_slope=0.1)),
    "no loops": Case(lambda: GATConv(WIDTH, 3, add_self_loops=False)),
    "edge features": _features("mean"),
    "edge features, add": _features("add"),
    "gatv2, shared weights": _dynamic(share_weights=True, residual=True),
    "gatv2, no loops": _dynamic(add_self_loops=False, negative_slope=0.1),
    "gatv2, edge features, add": _dynamic(edge_dim=EDGE_WIDTH, fill_value="add", concat=False, residual=True),
    "gatv2, an edge feature": Case(
        lambda: GATv2Conv(WIDTH, 3, edge_dim=1), lambda layer, x, g: layer(x, g.edge_index, g.edge_attr[:, 0])
    ),
    "gatv2, learned edge features": Case(lambda: _Mapped(GATv2Conv(WIDTH, 3, heads=2, edge_dim=4)), _with_features),
    "transformer, no root weight": _transformer(root_weight=False),
    "transformer, edge features, beta, the mean of heads": _transformer(edge_dim=EDGE_WIDTH, beta=True, concat=False),
}
MESSAGES = {
    "a class of the user's": Case(lambda: _Sharper(WIDTH, 3)),
    "a hook": Case(_hooked),
    "edge features, max": _features("max"),
    "a pair of rows": Case(lambda: GATConv(WIDTH, 3), lambda layer, x, g: layer((x, x), g.edge_index)),
    "weights that are returned": Case(
        lambda: GATConv(WIDTH, 3), lambda layer, x, g: layer(x, g.edge_index, return_attention_weights=True)[0]
    ),
    "other edges": Case(lambda: GATConv(WIDTH, 3), lambda layer, x, g: layer(x, g.edge_index.clone())),
    "a hook on lin": Case(lambda: _hooked_linear("lin"), _with_features),
    "a hook on lin_edge": Case(lambda: _hooked_linear("lin_edge"), _with_features),
    "its own propagate": Case(lambda: _with_own("propagate")),
    "its own forward": Case(lambda: _with_own("forward")),
    "gatv2, a pair of widths": Case(
        lambda: GATv2Conv((WIDTH, WIDTH), 3), lambda layer, x, g: layer((x, x.tanh()), g.edge_index)
    ),
    "gatv2, another aggregation": _dynamic(aggr="max"),
    "transformer, a pair of widths": Case(
        lambda: TransformerConv((WIDTH, WIDTH), 3), lambda layer, x, g: layer((x, x.tanh()), g.edge_index)
    ),
    "transformer, features without a map": Case(
        lambda: TransformerConv(WIDTH, EDGE_WIDTH),
        lambda layer, x, g: layer(x, g.edge_index, g.edge_attr.view(-1, 1, EDGE_WIDTH)),
    ),
    "a learned fill_value": Case(
        lambda: GATConv(WIDTH, 3, edge_dim=EDGE_WIDTH, fill_value=torch.nn.Parameter(torch.ones(3))), _with_features
    ),
}


@pytest.mark.parametrize("owner", [WITHOUT_EDGES, WITHOUT_NODES], ids=["without edges", "without nodes"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_makes_no_messages(name: str, owner: Any) -> None:
    """Its rows and gradients are PyG's."""
    check_exact(ATTENTION[name], owner)
    assert num_aggregations(ATTENTION[name]) == 0


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_made_where_attention_is_another(name: str) -> None:
    """PyG's own path runs."""
    check_exact(MESSAGES[name])
    assert num_aggregations(MESSAGES[name]) >= 2 * PARTS


def test_a_second_derivative_needs_messages() -> None:
    """The error says how to get them."""

    def second(layer: Any, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(layer(x, edge_index).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.pow(2).sum(), x)[0]

    def work(part: GraphPart) -> None:
        layer = distribute(GATConv(WIDTH, 3), part)
        with pytest.raises(RuntimeError, match=r"or give PyG's layer part\.edge_index\.clone\(\)"):
            second(layer, part.x, part.edge_index)
        assert second(layer, part.x, part.edge_index.clone()).isfinite().all()

    on_parts(WHOLE, PARTS, work)


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv, TransformerConv])
def test_features_of_other_edges_are_an_error(kind: type[torch.nn.Module]) -> None:
    """Those of the whole graph on a part: PyG says so, and the first of them are not taken."""

    def work(part: GraphPart) -> None:
        loops = {} if kind is TransformerConv else {"add_self_loops": False}
        layer = ug.distribute(kind(part.x.shape[1], 3, edge_dim=2, **loops).double(), part, check=False)
        layer(part.x, part.edge_index, torch.rand(part.edge_index.shape[1], 2).double())
        with pytest.raises(RuntimeError, match="must match the size"):
            layer(part.x, part.edge_index, torch.rand(part.edge_index.shape[1] + 7, 2).double())

    on_parts(WHOLE, 1, work)
