"""Layers that sum rows under `distribute`: a product with the edges' matrix, in place of a message for each edge.

Where a message is the source's row times a number of the edge, its sum or mean is such a product. PyG computes it so if
a sparse matrix is given in place of edge_index. Here edge_index is enough, if the edges stay the same: a matrix by
target and one by source are made once. Numbers decide, not names: the layer's `message` of ones gives each edge's
number; then its messages of a few drawn rows, and their gradients, must be these numbers times the rows.
"""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch_geometric.nn.aggr import Aggregation, MeanAggregation, SumAggregation
from torch_geometric.nn.conv import MessagePassing
from typing_extensions import override

from unilaunch_graph.operators.edges import ChosenEdges, order_edges
from unilaunch_graph.operators.neighbours import Neighbours
from unilaunch_graph.torch.as_written import aggregates_as_written, is_plain_matrix
from unilaunch_graph.torch.functions import edges_with_loops
from unilaunch_graph.torch.layer import TORCH, made_of
from unilaunch_graph.torch.part import GraphPart, is_same

_AGGREGATIONS: Mapping[type[Aggregation], bool] = {SumAggregation: False, MeanAggregation: True}  # whether it is a mean
#: Steps that are PyG's own where a layer adds up messages.
_DEFAULTS = ("aggregate", "update")
#: What PyG gives to a step by itself.
_SPECIAL = frozenset(MessagePassing.special_args)
#: Edges whose messages are tried.
_TRIED = 16
#: Products with other numbers that are kept for the same edges.
_MOST_KEPT = 4


def sum_rows(layer: MessagePassing, edge_index: torch.Tensor, given: Mapping[str, Any], part: GraphPart) -> Any:
    """Return what `propagate` returns, if it is a product with the matrix of edges that stay the same; else None.

    Args:
        layer: The layer.
        edge_index: Its edges.
        given: The further arguments of `propagate`; what `message` takes with "_j", as rows of all sources and of the
            targets.
        part: This rank's part.
    """
    lifted = _lifted_argument(layer, given)
    if lifted is None or not is_plain_matrix(given[lifted][0]):
        return None
    rows: torch.Tensor = given[lifted][0]
    chosen = _chosen(edge_index, part)
    if chosen is None:
        return None
    names = {*layer.inspector.get_param_names("message")} - {f"{lifted}_j"}
    of_edges = {name: given[name] for name in names & given.keys()}
    numbers = _numbers_of_edges(layer, edge_index, rows, f"{lifted}_j", of_edges)
    if numbers is None:
        return None
    return TORCH.apply(_operator(chosen, numbers, is_mean=_AGGREGATIONS[type(layer.aggr_module)]), rows)


def _lifted_argument(layer: MessagePassing, given: Mapping[str, Any]) -> str | None:
    """Return the one argument whose source rows `message` takes; None if the layer does more than add up messages."""
    if (
        any(getattr(getattr(layer, step), "__func__", None) is not getattr(MessagePassing, step) for step in _DEFAULTS)
        or "message" in vars(layer)
        or layer.node_dim not in {-2, 0}
        or not aggregates_as_written(layer, *_AGGREGATIONS)
    ):
        return None
    names = layer.inspector.get_param_names("message")
    lifted = [name.removesuffix("_j") for name in names if name.endswith(("_j", "_i"))]
    is_one = len(lifted) == 1 and isinstance(given.get(lifted[0]), tuple) and not _SPECIAL & {*names}
    return lifted[0] if is_one else None


def _numbers_of_edges(
    layer: MessagePassing, edge_index: torch.Tensor, rows: torch.Tensor, name: str, of_edges: Mapping[str, Any]
) -> torch.Tensor | None:
    """Return c, (edges,), where the message of each edge is c times the row of its source; None if it is another.

    A c that is learned needs the messages; a message that draws numbers, or keeps something in the layer, is another.
    """
    trial, before, count = copy(layer), {**vars(layer)}, edge_index.shape[1]

    def message(x_j: torch.Tensor, others: Mapping[str, Any]) -> torch.Tensor:
        made: torch.Tensor = type(layer).message(trial, **{name: x_j}, **others)
        return made

    drawn = _drawn(edge_index, rows.dtype)
    try:
        with _WithoutDraws():
            numbers = message(rows.new_ones(count, 1), of_edges)
            is_product = (
                (numbers.shape, numbers.dtype, numbers.requires_grad) == (drawn.shape, rows.dtype, False)
                and _are_close(message(drawn, of_edges), numbers * drawn)
                and _is_product_of_rows(message, numbers, edge_index, rows, of_edges)
            )
    except Exception:  # noqa: BLE001  (whatever a message of the user's raises, it is another)
        return None
    is_kept = vars(trial).keys() == before.keys() and all(value is before[key] for key, value in vars(trial).items())
    return numbers.view(-1) if is_product and is_kept else None


def _drawn(edge_index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a drawn number for each edge, the same in each call. (edges, 1)"""
    made = made_of(edge_index)
    if ("drawn", dtype) not in made:
        with torch.inference_mode(mode=False):
            generator = torch.Generator().manual_seed(0)
            made["drawn", dtype] = torch.empty(edge_index.shape[1], 1, dtype=dtype).normal_(generator=generator)
    drawn: torch.Tensor = made["drawn", dtype]
    return drawn


def _is_product_of_rows(
    message: Callable[..., torch.Tensor], numbers: torch.Tensor, edge_index: torch.Tensor, rows: torch.Tensor,
    of_edges: Mapping[str, Any],
) -> bool:  # fmt: skip
    """Return whether the messages of a few edges are their numbers times rows: their own rows, and drawn ones."""
    count = edge_index.shape[1]
    tried = torch.arange(0, count, max(1, count // _TRIED))[:_TRIED]
    both = torch.cat([tried, tried])
    few = {key: one[both] if _is_of_edges(one, count) else one for key, one in of_edges.items()}
    drawn = _drawn(edge_index, rows.dtype)[:: max(1, count // _TRIED)][:_TRIED] * rows.new_ones(1, rows.shape[1])
    drawn = drawn * torch.logspace(-4, 4, rows.shape[1], dtype=rows.dtype)
    with torch.inference_mode(mode=False), torch.enable_grad():
        some = torch.cat([drawn, rows.detach()[edge_index[0, tried]]]).requires_grad_()
        messages = message(some, few)
        gradient = torch.autograd.grad(messages.sum(), some)[0]
    expected = numbers[both]
    return (
        messages.shape == some.shape
        and _are_close(messages.detach(), expected * some.detach())
        and _are_close(gradient, expected.expand_as(some))
    )


def _is_of_edges(given: Any, count: int) -> bool:
    return isinstance(given, torch.Tensor) and given.dim() > 0 and len(given) == count


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    return torch.allclose(one, other, rtol=1e-5 if one.dtype == torch.float32 else 1e-12, atol=0)


class _WithoutDraws(TorchFunctionMode):
    """Where a message draws numbers, this raises: another message would be drawn."""

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(word in getattr(func, "__name__", "") for word in ("dropout", "rand", "bernoulli", "normal", "uniform")):
            raise RuntimeError("a message that draws numbers")
        return func(*args, **(kwargs or {}))


def _chosen(edge_index: torch.Tensor, part: GraphPart) -> ChosenEdges | None:
    """Return the edges by target, made once; None if they are neither the part's nor made of them by PyG."""
    known = [part.edge_index, *edges_with_loops(part), *(tensor for kept in part.kept.values() for tensor in kept.made)]
    edges = next((tensor for tensor in known if is_same(edge_index, tensor)), None)
    if edges is None or edges.is_inference():
        return None
    made, sizes = made_of(edges), (part.num_owned, part.num_owned + part.num_halo)
    if sizes not in made:
        made[sizes] = order_edges(edges.numpy(), *sizes)
    chosen: ChosenEdges = made[sizes]
    return chosen


def _operator(chosen: ChosenEdges, numbers: torch.Tensor, *, is_mean: bool) -> Neighbours:
    """Return the sum or mean over edges, each times its number; the last few are kept."""
    dtype = TORCH.dtype(numbers)
    kept: list[tuple[torch.Tensor, Neighbours]] = chosen.made.setdefault((is_mean, dtype), [])
    for others, operator in kept:
        if torch.equal(numbers, others):
            return operator
    values = np.empty(0, dtype)
    if not bool((numbers == 1).all()):
        values = numbers.numpy()[chosen.places]
    made = Neighbours(chosen.edges, dtype, TORCH.pool(), values, mean=is_mean)
    kept[:] = [*kept[1 - _MOST_KEPT :], (numbers.clone(), made)]
    return made
