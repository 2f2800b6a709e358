"""Layers of PyG under `distribute` on the CPU: without a message in memory, where the result is the same.

Where a message is the source's row, or that times the edge's weight, its sum or mean is a product with the edges'
matrix: `sum_rows`. PyG computes it so if a sparse matrix is given in place of edge_index. Here edge_index is enough, if
the edges stay the same: a matrix by target and one by source are made once. Layers of attention get another forward:
`attending`. Both look first whether the layer and the call are as PyG wrote them.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import CodeType, FunctionType
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn.aggr import Aggregation, MeanAggregation, SumAggregation
from torch_geometric.nn.conv import GATConv, GATv2Conv, MessagePassing, TransformerConv
from torch_geometric.nn.dense import Linear
from typing_extensions import override

from unilaunch_graph.network.functions import halo
from unilaunch_graph.network.layers import Framework, GraphAttention
from unilaunch_graph.operators.attention import Attention, Scores, dynamic_scores, product_scores
from unilaunch_graph.operators.edges import FILLS, ChosenEdges, order_edges
from unilaunch_graph.operators.halo_edges import Neighbours
from unilaunch_graph.torch.functions import current
from unilaunch_graph.torch.layers import TORCH, made_of
from unilaunch_graph.torch.part import GraphPart, is_eager, is_same
from unilaunch_graph.torch.portable_dropout import draw_seed
from unilaunch_graph.torch.prediction import ON_BLOCK

_AGGREGATIONS: Mapping[type[Aggregation], bool] = {SumAggregation: False, MeanAggregation: True}  # whether it is a mean


class _Messages:
    """Messages that are summed by a product."""

    def row(self, x_j: Any) -> Any:
        return x_j

    def weighted(self, x_j: Any, edge_weight: Any) -> Any:
        return edge_weight.view(-1, 1) * x_j

    def weighted_if_given(self, x_j: Any, edge_weight: Any) -> Any:
        return x_j if edge_weight is None else edge_weight.view(-1, 1) * x_j


def sum_rows(layer: MessagePassing, edge_index: torch.Tensor, given: Mapping[str, Any], part: GraphPart) -> Any:
    """Return what `propagate` returns, if it is a product with the matrix of edges that stay the same; else None.

    Args:
        layer: The layer.
        edge_index: Its edges.
        given: The further arguments of `propagate`; "x" with the rows of all sources and of the targets.
        part: This rank's part.
    """
    message = message_of(layer)
    if message is None or not isinstance(given.get("x"), tuple):
        return None
    given_rows, weights = given["x"][0], None if message is _Messages.row else given.get("edge_weight")
    rows = _as_matrix(given_rows, layer.node_dim)
    if not is_plain_matrix(rows) or not _are_numbers(weights, edge_index, rows, needed=message is _Messages.weighted):
        return None
    chosen = _chosen(edge_index, part)
    if chosen is None:
        return None
    sums = TORCH.apply(_operator(chosen, weights, rows, is_mean=_AGGREGATIONS[type(layer.aggr_module)]), rows)
    return sums if rows is given_rows else _as_given(sums, given_rows)


def _as_matrix(rows: Any, axis: int) -> Any:
    """Return rows of shape (..., nodes, width) as a matrix, each node's columns side by side; others as they are."""
    if isinstance(rows, torch.Tensor) and axis == -2 and rows.dim() > 2:  # noqa: PLR2004
        return rows.movedim(-2, 0).flatten(1)  # a view of rows that came with a halo
    return rows


def _as_given(sums: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Return the sums of `_as_matrix(given, -2)` in the dimensions of *given*."""
    *batch, _, width = given.shape
    return sums.reshape(len(sums), *batch, width).movedim(0, -2)


def message_of(layer: MessagePassing) -> Any:
    """Return which of `_Messages` the layer sums; None if it does something else, and its messages must be made."""
    steps = {name: getattr(getattr(layer, name), "__func__", None) for name in ("message", "aggregate", "update")}
    if (
        any(steps[name] is not getattr(MessagePassing, name) for name in ("aggregate", "update"))
        or layer.node_dim not in {-2, 0}
        or not aggregates_as_written(layer, *_AGGREGATIONS)
        or not isinstance(steps["message"], FunctionType)
    ):
        return None
    return _same_message(steps["message"])


@cache
def _same_message(message: FunctionType) -> Any:
    """Return which of `_Messages` has the code of *message*: many classes write the same line."""
    known: list[Any] = [_Messages.row, _Messages.weighted, _Messages.weighted_if_given]
    return next((one for one in known if _text(one.__code__) == _text(message.__code__)), None)


def _text(code: CodeType) -> tuple[Any, ...]:
    return code.co_code, code.co_varnames, code.co_names, code.co_consts[1:]  # the first is the docstring


def _are_numbers(weights: Any, edge_index: torch.Tensor, rows: torch.Tensor, *, needed: bool) -> bool:
    if weights is None:
        return not needed
    return (
        type(weights) in {torch.Tensor, torch.nn.Parameter}
        and not weights.requires_grad  # a weight that is learned needs the messages
        and not weights.is_inference()  # torch does not count how often it is written to
        and weights.numel() == edge_index.shape[1]
        and torch.promote_types(weights.dtype, rows.dtype) == rows.dtype
    )


def _chosen(edge_index: torch.Tensor, part: GraphPart) -> ChosenEdges | None:
    """Return the edges by target, made once; None if they are neither the part's nor those of a normalisation of it."""
    known = [part.edge_index, *(tensor for entry in part.cache.values() for tensor in entry.outputs)]
    edges = next((tensor for tensor in known if is_same(edge_index, tensor)), None)
    if edges is None or edges.is_inference():
        return None
    made, sizes = made_of(edges), (part.num_owned, part.num_owned + part.num_halo)
    if sizes not in made:
        made[sizes] = order_edges(edges.numpy(), *sizes)
    chosen: ChosenEdges = made[sizes]
    return chosen


def _operator(
    chosen: ChosenEdges, weights: torch.Tensor | None, rows: torch.Tensor, *, is_mean: bool
) -> Neighbours:  # fmt: skip
    """Return the sum or mean over edges, made once for each tensor of weights."""
    made, key = chosen.made, (is_mean, rows.dtype)
    if weights is not None:
        made = made_of(weights, made.setdefault("weights", WeakIdKeyDictionary()))
    if key not in made:
        dtype = TORCH.dtype(rows)
        values = np.empty(0, dtype)
        if weights is not None:
            values = weights.detach().to(rows.dtype).numpy().reshape(-1)[chosen.places]
        made[key] = Neighbours(chosen.edges, dtype, TORCH.pool(), values, mean=is_mean)
    operator: Neighbours = made[key]
    return operator


_STEPS = frozenset({"propagate", "edge_updater", "message", "aggregate", "update", "edge_update"})


class _Attention(GraphAttention):
    """A layer of PyG's, whose attributes have the same names: GATConv.

    Attributes:
        linear_maps: The names of its linear maps of x.
        steps: The steps of PyG's that it takes the place of.
        defaults: What its further arguments are where they ask for nothing.
    """

    framework: ClassVar[Framework] = TORCH
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
            and is_plain_linear(self.lin_edge)
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
        function = Attention(edges.edges, scores, TORCH.pool(), self.edge_dropout(rows[0], part, edges, None))
        out = TORCH.call(function, *rows, *of_edges)
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
        if is_plain and not ON_BLOCK.get() and is_plain_matrix(x) and _is_as_written(self, kind):
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
        and all(is_plain_linear(getattr(layer, name)) for name in kind.linear_maps)
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


_HOOKED = ("propagate", "message", "aggregate", "edge_update")
_HOOKS = [f"_{step}_forward_{when}hooks" for step in _HOOKED for when in ("pre_", "")]
_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_of_pyg(layer: MessagePassing, step: str) -> bool:
    """Return whether `propagate` or `edge_updater` is PyG's own, which PyG writes anew for each class."""
    kind = vars(type(layer))
    written = kind.get(f"_jinja_{step}")
    return written is not None and kind.get(step) is written is not kind[f"_orig_{step}"] and step not in vars(layer)


def aggregates_as_written(layer: MessagePassing, *kinds: type[Aggregation]) -> bool:
    """Return whether the layer aggregates by one of *kinds*, and no function of the user's looks at its steps."""
    return (
        type(layer.aggr_module) in kinds
        and _is_untouched(layer.aggr_module)
        and not layer.explain
        and not any(getattr(layer, name) for name in _HOOKS)
    )


def is_plain_linear(module: Any) -> bool:
    """Return whether it is PyG's linear map without anything of the user's."""
    return type(module) is Linear and _is_untouched(module)


def _is_untouched(module: torch.nn.Module) -> bool:
    return "forward" not in vars(module) and not any(getattr(module, name) for name in _MODULE_HOOKS)


def is_plain_matrix(rows: Any) -> bool:
    """Return whether they are rows that unilaunch's operators on host arrays take, now, outside of any transform."""
    return (
        type(rows) in {torch.Tensor, torch.nn.Parameter}
        and rows.dim() == 2  # noqa: PLR2004
        and rows.device.type == "cpu"
        and rows.layout is torch.strided
        and rows.dtype in {torch.float32, torch.float64}
        and is_eager()
    )
