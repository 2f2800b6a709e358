"""PyG's layers of attention under `distribute` on the CPU: another forward, without a message in memory.

It looks first whether the layer and the call are as PyG wrote them, as `sums` does for sums of rows.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.nn.conv import GATConv, GATv2Conv, MessagePassing, TransformerConv
from torch_geometric.nn.dense import Linear
from typing_extensions import override

from unilaunch_graph.network.functions import halo
from unilaunch_graph.network.layers import GraphAttention, Operations
from unilaunch_graph.operators.attention import Attention, Scores, dynamic_scores, product_scores
from unilaunch_graph.operators.edges import FILLS
from unilaunch_graph.torch.layers import OPERATIONS
from unilaunch_graph.torch.part import GraphPart, is_same
from unilaunch_graph.torch.portable_dropout import draw_seed
from unilaunch_graph.torch.running import ON_BLOCK, current
from unilaunch_graph.torch.sums import aggregates_as_written, is_of_pyg, is_on_host, is_untouched

_STEPS = frozenset({"propagate", "edge_updater", "message", "aggregate", "update", "edge_update"})


class _Attention(GraphAttention):
    """A layer of PyG's, whose attributes have the same names: GATConv.

    Attributes:
        linear_maps: The names of its linear maps of x.
        steps: The steps of PyG's that it takes the place of.
        defaults: What its further arguments are where they ask for nothing.
    """

    operations: ClassVar[Operations] = OPERATIONS
    linear_maps: ClassVar[tuple[str, ...]] = ("lin",)
    steps: ClassVar[tuple[str, ...]] = ("propagate", "edge_updater")
    defaults: ClassVar[tuple[Any, ...]] = (None, False)

    def __init__(self, layer: MessagePassing) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    @property
    @override
    def name(self) -> str:  # type: ignore[override]
        """The name of the class, for messages."""
        return type(self._layer).__name__

    @override
    def draw_seed(self) -> int:
        return draw_seed()

    def takes(self, edge_attr: Any) -> bool:
        """Return whether attention can take these edge features with this layer."""
        if self.lin_edge is None:
            return True
        return (
            type(edge_attr) is torch.Tensor
            and _is_plain_linear(self.lin_edge)
            and self.lin_edge.bias is None
            and _is_known_fill(self.fill_value)
        )

    def run(self, x: torch.Tensor, part: GraphPart, edge_attr: Any) -> Any:
        """Return what the layer's forward returns."""
        return self.attend(x, part, edge_attr, None)

    def call(self, scores: Scores, part: GraphPart, edge_attr: Any, *rows: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums of the owned nodes, of all heads or their mean; *rows* are what *scores* takes."""
        edges = self.edges_of(part, self_loops=self.add_self_loops)
        of_edges: tuple[torch.Tensor, ...] = ()
        if self.lin_edge is not None:
            features = edge_attr[:, None] if edge_attr.dim() == 1 else edge_attr
            of_edges = self.chosen_features(part, edges, features), self.lin_edge.weight
        function = Attention(edges.edges, scores, OPERATIONS.pool(), self.edge_dropout(rows[0], part, edges, None))
        out = OPERATIONS.call(function, *rows, *of_edges)
        return out if self.concat else out.view(-1, self.heads, self.out_channels).mean(1)


class _Dynamic(_Attention):
    """GATv2Conv."""

    linear_maps = ("lin_l", "lin_r")

    @override
    def takes(self, edge_attr: Any) -> bool:
        return super().takes(edge_attr) and _are_features(edge_attr, self.lin_edge, (1, 2))

    @override
    def run(self, x: torch.Tensor, part: GraphPart, edge_attr: Any) -> Any:
        (left,) = _with_halo(x, part, self.lin_l)
        right = left[: part.num_owned] if self.share_weights else self.lin_r(x)
        out = self.call(dynamic_scores(self.negative_slope), part, edge_attr, left, right, self.att[0])
        if self.res is not None:
            out = out + self.res(x)
        return out * 1 if self.bias is None else out + self.bias  # the caller may write to it


class _Product(_Attention):
    """TransformerConv."""

    linear_maps = ("lin_query", "lin_key", "lin_value", "lin_skip")
    steps = ("propagate",)
    defaults = (None,)  # return_attention_weights=False returns them too
    add_self_loops = False
    fill_value = 0.0

    @override
    def takes(self, edge_attr: Any) -> bool:
        return super().takes(edge_attr) and _are_features(edge_attr, self.lin_edge, (2,))

    @override
    def run(self, x: torch.Tensor, part: GraphPart, edge_attr: Any) -> Any:
        key, value = _with_halo(x, part, self.lin_key, self.lin_value)
        out = self.call(product_scores(self.heads), part, edge_attr, self.lin_query(x), key, value)
        if not self.root_weight:
            return out * 1
        own = self.lin_skip(x)
        if self.lin_beta is None:
            return out + own
        beta = self.lin_beta(torch.cat([out, own, out - own], dim=-1)).sigmoid()
        return beta * own + (1 - beta) * out


_KINDS: Mapping[type[MessagePassing], type[_Attention]] = {
    GATConv: _Attention,
    GATv2Conv: _Dynamic,
    TransformerConv: _Product,
}


def may_attend(layer: torch.nn.Module) -> bool:
    """Return whether it is one of these layers as PyG wrote it, before `distribute` changes it."""
    kind = _KINDS.get(type(layer))
    return kind is not None and "forward" not in vars(layer) and all(is_of_pyg(layer, step) for step in kind.steps)


def attending(layer: MessagePassing, part: GraphPart) -> Callable[..., Any]:
    """Return a forward that makes no messages on *part* where it can, or else is the layer's own.

    Args:
        layer: As `distribute` has changed it; `may_attend` was true of it before.
        part: This rank's part.
    """
    method, kind = layer.forward.__func__, _KINDS[type(layer)]
    bound = {name: vars(layer)[name].__func__ for name in ("propagate", "edge_updater")}

    def forward(
        self: MessagePassing, x: Any, edge_index: Any, edge_attr: Any = None, *args: Any, **options: Any
    ) -> Any:
        here = current(part)
        is_plain = all(_is_any(one, kind.defaults) for one in (*args, *options.values())) and _steps(self) == bound
        if is_plain and not ON_BLOCK.get() and is_on_host(x) and _is_as_written(self, kind):
            attention = kind(self)
            if attention.takes(edge_attr) and _fits(self, x, edge_index, edge_attr, here):
                return attention.run(x, here, edge_attr)
        return method(self, x, edge_index, edge_attr, *args, **options)

    return forward


def _is_any(value: object, others: tuple[Any, ...]) -> bool:
    return any(value is other for other in others)


def _steps(layer: MessagePassing) -> dict[str, Any]:
    """Return the steps that stand in the layer and not in its class."""
    return {name: getattr(vars(layer)[name], "__func__", None) for name in _STEPS & vars(layer).keys()}


def _is_as_written(layer: MessagePassing, kind: type[_Attention]) -> bool:
    """Return whether the layer does what PyG wrote."""
    return (
        aggregates_as_written(layer, SumAggregation)
        and all(_is_plain_linear(getattr(layer, name)) for name in kind.linear_maps)
        and not (layer.training and layer.dropout >= 1)
    )


def _is_known_fill(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.requires_grad and value.dtype in {torch.float32, torch.float64}
    return value in FILLS if isinstance(value, str) else isinstance(value, int | float)


def _are_features(edge_attr: Any, linear: Any, dims: tuple[int, ...]) -> bool:
    """Return whether they are numbers of as many dimensions, for this linear map; without one, none are expected."""
    if linear is None:
        return edge_attr is None
    width = edge_attr.shape[1] if edge_attr.dim() == 2 else 1  # noqa: PLR2004
    return edge_attr.dim() in dims and edge_attr.dtype == linear.weight.dtype and width == linear.weight.shape[1]


def _fits(layer: MessagePassing, x: torch.Tensor, edge_index: Any, edge_attr: Any, part: GraphPart) -> bool:
    return (
        is_same(edge_index, part.edge_index)
        and not part.edge_index.is_inference()  # torch does not count how often it is written to
        and x.dim() == 2  # noqa: PLR2004
        and len(x) == part.num_owned
        and (edge_attr is None or len(edge_attr) == part.edge_index.shape[1])  # PyG says what is wrong with others
        and all(parameter.dtype == x.dtype for parameter in layer.parameters())
        and not torch.is_autocast_enabled("cpu")
    )


def _with_halo(x: torch.Tensor, part: GraphPart, *linear_maps: Any) -> list[torch.Tensor]:
    """Return the linear maps of owned and halo rows; what is narrower is exchanged: x, or all of its images."""
    widths = [linear.weight.shape[0] for linear in linear_maps]
    if x.shape[1] < sum(widths):
        rows = halo(x, part)
        return [linear(rows) for linear in linear_maps]
    rows = halo(torch.cat([linear(x) for linear in linear_maps], 1), part)
    return list(torch.split(rows, widths, 1))


def _is_plain_linear(module: Any) -> bool:
    """Return whether it is PyG's linear map without anything of the user's."""
    return type(module) is Linear and is_untouched(module)
