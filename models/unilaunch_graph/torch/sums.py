"""Layers of PyG that sum rows: a product with the edges' matrix, in place of a message for each edge.

Where a message is the source's row, or that times the edge's weight, its sum or mean is such a product. PyG computes it
so if a sparse matrix is given in place of edge_index. Here edge_index is enough, if the edges stay the same: a matrix
by target and one by source are made once.
"""

from collections.abc import Mapping
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn.aggr import Aggregation, MeanAggregation, SumAggregation
from torch_geometric.nn.conv import MessagePassing

from unilaunch_graph.arrays import FloatType
from unilaunch_graph.operators.edges import ChosenEdges, order_edges
from unilaunch_graph.operators.neighbours import Neighbours
from unilaunch_graph.torch.layer import TORCH, made_of
from unilaunch_graph.torch.part import GraphPart, is_same

_AGGREGATIONS: Mapping[type[Aggregation], bool] = {SumAggregation: False, MeanAggregation: True}  # whether it is a mean
_STEPS = ("propagate", "message", "aggregate", "edge_update")
_HOOKS = [f"_{step}_forward_{when}hooks" for step in _STEPS for when in ("pre_", "")]


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
    takes_weights = _takes_weights(layer)
    if takes_weights is None or not isinstance(given.get("x"), tuple) or torch.compiler.is_compiling():
        return None
    rows, weights = given["x"][0], given.get("edge_weight") if takes_weights else None
    if not is_matrix(rows) or (weights is not None and not _are_numbers(weights, edge_index, rows)):
        return None
    chosen = _chosen(edge_index, part)
    if chosen is None:
        return None
    operator = _operator(chosen, weights, TORCH.dtype(rows), is_mean=_AGGREGATIONS[type(layer.aggr_module)])
    return TORCH.apply(operator, rows)


def _takes_weights(layer: MessagePassing) -> bool | None:
    """Return whether the layer sums rows times weights, or plain rows (False); None if it does something else."""
    steps = {name: getattr(getattr(layer, name), "__func__", None) for name in ("message", "aggregate", "update")}
    if (
        any(steps[name] is not getattr(MessagePassing, name) for name in ("aggregate", "update"))
        or type(layer.aggr_module) not in _AGGREGATIONS
        or layer.node_dim not in {-2, 0}
        or layer.explain
        or has_hooks(layer)
        or not isinstance(steps["message"], FunctionType)
    ):
        return None
    return _has_weights(steps["message"])


def has_hooks(layer: MessagePassing) -> bool:
    """Return whether a function of the user's looks at the layer's steps."""
    return any(getattr(layer, name) for name in _HOOKS)


@cache
def _has_weights(message: FunctionType) -> bool | None:
    """Return the same for a method `message`, by its code: many classes write the same line."""
    known: list[Any] = [_Messages.row, _Messages.weighted, _Messages.weighted_if_given]
    same = [one for one in known if _text(one.__code__) == _text(message.__code__)]
    return same[0] is not _Messages.row if same else None


def _text(code: CodeType) -> tuple[Any, ...]:
    return code.co_code, code.co_varnames, code.co_names, code.co_consts[1:]  # the first is the docstring


def is_matrix(rows: Any) -> bool:
    """Return whether they are rows that unilaunch's operators on host arrays take."""
    return (
        isinstance(rows, torch.Tensor)
        and rows.dim() == 2  # noqa: PLR2004
        and rows.device.type == "cpu"
        and rows.layout is torch.strided
        and rows.dtype in {torch.float32, torch.float64}
    )


def _are_numbers(weights: Any, edge_index: torch.Tensor, rows: torch.Tensor) -> bool:
    return (
        isinstance(weights, torch.Tensor)
        and not weights.requires_grad  # a weight that is learned needs the messages
        and not weights.is_inference()  # torch does not count how often it is written to
        and weights.numel() == edge_index.shape[1]
        and torch.promote_types(weights.dtype, rows.dtype) == rows.dtype
    )


def _chosen(edge_index: torch.Tensor, part: GraphPart) -> ChosenEdges | None:
    """Return the edges by target, made once; None if they are neither the part's nor those of a normalisation of it."""
    known = [part.edge_index, *(tensor for kept in part.kept.values() for tensor in kept.made)]
    edges = next((tensor for tensor in known if is_same(edge_index, tensor)), None)
    if edges is None:
        return None
    made, sizes = made_of(edges), (part.num_owned, part.num_owned + part.num_halo)
    if sizes not in made:
        made[sizes] = order_edges(edges.numpy(), *sizes)
    chosen: ChosenEdges = made[sizes]
    return chosen


def _operator(chosen: ChosenEdges, weights: torch.Tensor | None, dtype: FloatType, *, is_mean: bool) -> Neighbours:
    """Return the sum or mean over edges, made once for each tensor of weights."""
    made = chosen.made
    if weights is not None:
        made = made_of(weights, made.setdefault("weights", WeakIdKeyDictionary()))
    if (is_mean, dtype) not in made:
        values = np.empty(0, dtype) if weights is None else weights.detach().numpy().reshape(-1)[chosen.places]
        made[is_mean, dtype] = Neighbours(chosen.edges, dtype, TORCH.pool(), values, mean=is_mean)
    operator: Neighbours = made[is_mean, dtype]
    return operator
