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
from unilaunch_graph.torch.blocks import ON_BLOCK
from unilaunch_graph.torch.layer import TORCH
from unilaunch_graph.torch.part import GraphPart, is_same
from unilaunch_graph.torch.sums import has_hooks, is_matrix

_STEPS = frozenset({"message", "aggregate", "update", "edge_update"})


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
        return int(torch.randint(2**62, ()))


def attending(method: Callable[..., Any], part: GraphPart) -> Callable[..., Any]:
    """Return a forward of GATConv that makes no messages on *part*, or else is *method*."""

    def forward(  # noqa: PLR0913, PLR0917
        self: GATConv, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None,
        return_attention_weights: Any = None,
    ) -> Any:  # fmt: skip
        is_plain = size is None and not return_attention_weights and is_same(edge_index, part.edge_index)
        if is_plain and not ON_BLOCK.get() and _is_attention(self) and _fits(self, x, edge_attr, part):
            return _Attention(self).attend(x, part, edge_attr, None)
        return method(self, x, edge_index, edge_attr, size, return_attention_weights)

    return forward


def _is_attention(layer: GATConv) -> bool:
    """Return whether the layer does what PyG wrote, and unilaunch's attention can do it."""
    return (
        layer.lin is not None
        and type(layer.aggr_module) is SumAggregation
        and not _STEPS & vars(layer).keys()
        and not layer.explain
        and not has_hooks(layer)
        and (layer.fill_value in FILLS if isinstance(layer.fill_value, str) else True)
        and not (layer.training and layer.dropout >= 1)
    )


def _fits(layer: GATConv, x: Any, edge_attr: Any, part: GraphPart) -> bool:
    return (
        is_matrix(x)
        and len(x) == part.num_owned
        and x.dtype == layer.att_src.dtype
        and (layer.lin_edge is None or isinstance(edge_attr, torch.Tensor))
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )
