"""PyG's GATConv under `distribute`: unilaunch's attention with the layer's parameters, where the result is the same."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.nn.conv import GATConv
from typing_extensions import override

from unilaunch_graph.network.gat import GraphAttention
from unilaunch_graph.network.layer import Framework
from unilaunch_graph.operators.edge_features import FILLS
from unilaunch_graph.torch.as_written import aggregates_as_written, is_plain_linear, is_plain_matrix
from unilaunch_graph.torch.blocks import ON_BLOCK
from unilaunch_graph.torch.layer import TORCH
from unilaunch_graph.torch.part import GraphPart, is_same
from unilaunch_graph.torch.portable_dropout import draw_seed

_STEPS = frozenset({"propagate", "edge_updater", "message", "aggregate", "update", "edge_update"})


class _Attention(GraphAttention):
    """A layer of PyG's, whose attributes have the same names."""

    framework: ClassVar[Framework] = TORCH
    name: ClassVar[str] = "GATConv"

    def __init__(self, layer: GATConv) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    @override
    def draw_seed(self) -> int:
        return draw_seed()


def attending(layer: GATConv, part: GraphPart) -> Callable[..., Any]:
    """Return a forward of GATConv that makes no messages on *part* where it can, or else is the layer's own.

    Args:
        layer: As `distribute` has changed it.
        part: This rank's part.
    """
    method = layer.forward.__func__
    bound = {name: vars(layer)[name].__func__ for name in ("propagate", "edge_updater")}

    def forward(  # noqa: PLR0913, PLR0917
        self: GATConv, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None,
        return_attention_weights: Any = None,
    ) -> Any:  # fmt: skip
        is_plain = size is None and not return_attention_weights and _steps(self) == bound
        if is_plain and not ON_BLOCK.get() and _is_attention(self) and _fits(self, x, edge_index, edge_attr, part):
            return _Attention(self).attend(x, part, edge_attr, None)
        return method(self, x, edge_index, edge_attr, size, return_attention_weights)

    return forward


def _steps(layer: GATConv) -> dict[str, Any]:
    """Return the steps that stand in the layer and not in its class."""
    return {name: getattr(vars(layer)[name], "__func__", None) for name in _STEPS & vars(layer).keys()}


def _is_attention(layer: GATConv) -> bool:
    """Return whether the layer does what PyG wrote, and unilaunch's attention can do it."""
    return (
        aggregates_as_written(layer, SumAggregation)
        and is_plain_linear(layer.lin)
        and (layer.lin_edge is None or (is_plain_linear(layer.lin_edge) and layer.lin_edge.bias is None))
        and _is_known_fill(layer.fill_value)
        and not (layer.training and layer.dropout >= 1)
    )


def _is_known_fill(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.requires_grad and value.dtype in {torch.float32, torch.float64}
    return value in FILLS if isinstance(value, str) else isinstance(value, int | float)


def _fits(layer: GATConv, x: Any, edge_index: Any, edge_attr: Any, part: GraphPart) -> bool:
    return (
        is_plain_matrix(x)
        and is_same(edge_index, part.edge_index)
        and not part.edge_index.is_inference()  # torch does not count how often it is written to
        and len(x) == part.num_owned
        and x.dtype == layer.att_src.dtype
        and (layer.lin_edge is None or type(edge_attr) is torch.Tensor)
        and not torch.is_autocast_enabled("cpu")
    )
