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

from unilaunch_graph.operators.edges import ChosenEdges, order_edges
from unilaunch_graph.operators.halo_edges import Neighbours
from unilaunch_graph.torch.as_written import aggregates_as_written, is_plain_matrix
from unilaunch_graph.torch.layers import TORCH, made_of
from unilaunch_graph.torch.part import GraphPart, is_same

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
