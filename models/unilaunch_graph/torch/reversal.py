"""Layers that are called with `edge_index.flip(0)`, under `distribute`: they run on the reversed part.

The edges are told by their numbers, whatever has flipped them. A part without edges, or with loops alone, cannot
tell: in such a graph the ranks ask each other at each call of a layer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch_geometric.nn.conv import MessagePassing

from unilaunch.errors import SpecError
from unilaunch_graph.purpose import Purpose
from unilaunch_graph.simulation import EDGE_FIELDS
from unilaunch_graph.torch.layers import made_of
from unilaunch_graph.torch.part import GraphPart, is_flip, is_same
from unilaunch_graph.torch.running import ON_BLOCK, current, is_eager, running_on
from unilaunch_torch.linear import apply


def with_reversal(method: Callable[..., Any], part: GraphPart) -> Callable[..., Any]:
    """Return the forward of a layer, which takes `edge_index.flip(0)` too. All ranks must call it.

    Args:
        method: The forward, which finds its part by `current`.
        part: This rank's part.
    """

    @wraps(method)
    def forward(self: MessagePassing, *args: Any, **options: Any) -> Any:
        if not is_eager() or ON_BLOCK.get():
            return method(self, *args, **options)
        here = current(part)
        is_here = any(_is_flipped(one, here) for one in (*args, *options.values()) if _are_edges(one))
        if not here.ranks.agree_on_flip(is_here=is_here, edges=None if here.all_tell else here.edge_index):
            return method(self, *args, **options)
        there, given = _reversed(_named(self, args, options), here)
        with running_on(there):
            out = method(self, *given[: len(args)], **dict(zip(options, given[len(args) :], strict=True)))
        rows = (one for one in tree_leaves(out) if isinstance(one, torch.Tensor) and one.dim())
        if any(here.num_owned not in one.shape for one in rows):
            raise SpecError(
                f"{type(self).__name__} is called with edge_index.flip(0), whose order is another one in parts, and "
                "returns rows that are not those of nodes: expected rows of nodes alone"
            )
        return out

    return forward


def _are_edges(value: Any) -> bool:
    return type(value) is torch.Tensor and value.dtype == torch.int64 and value.dim() == 2 and len(value) == 2  # noqa: PLR2004


def _is_flipped(edges: torch.Tensor, part: GraphPart) -> bool:
    """Return whether these are the flip of the part's edges, and not the same."""
    if is_same(edges, part.edge_index):
        return False
    made = made_of(edges)
    if "flip" not in made or made["flip"][0] is not part.edge_index:
        made["flip"] = part.edge_index, is_flip(edges, part) and not torch.equal(edges, part.edge_index)
    is_flipped: bool = made["flip"][1]
    return is_flipped


def _named(layer: MessagePassing, args: Sequence[Any], options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the arguments of a forward with their names; "" where it has none."""
    names = [*signature(type(layer).forward).parameters][1 : len(args) + 1]
    return [*zip([*names, *[""] * (len(args) - len(names))], args, strict=True), *options.items()]


def _reversed(given: Sequence[tuple[str, Any]], part: GraphPart) -> tuple[GraphPart, list[Any]]:
    """Return the reversed part of *part*, and a layer's arguments there."""
    reversal, arguments = part.reversal(), []
    fields = dict(reversal.fields)
    for (name, value), is_of_edges in zip(given, _are_of_edges(given, part), strict=True):
        there = value
        if _are_edges(value):
            if is_same(value, part.edge_index) or not is_flip(value, part):
                raise SpecError(f"{name}: a layer is called with edge_index.flip(0) and other edges: call it twice")
            there = reversal.fields["edge_index"]
        elif is_of_edges:
            there = _rows_of_edges(value, part)
            if is_same(value, part.edge_weight):
                fields["edge_weight"] = there  # whose norm is kept
        arguments.append(there)
    return replace(part, **fields), arguments


def _rows_of_edges(rows: torch.Tensor, part: GraphPart) -> torch.Tensor:
    """Return the rows of the reversed part's edges; those of the part's own fields are sent once."""
    reversal = part.reversal()
    if name := next((name for name in EDGE_FIELDS if is_same(rows, getattr(part, name))), None):
        return part.cached(("reversed", name), (rows,), lambda: (apply(reversal.edges, rows),))[0]
    return apply(reversal.edges, rows)


def _are_of_edges(given: Sequence[tuple[str, Any]], part: GraphPart) -> list[bool]:
    """Return of each argument whether it has a row for each edge, on all ranks: one of them may have as many nodes.

    Raises:
        SpecError: All ranks have as many nodes as edges, and the name does not tell.
    """
    lengths = part.edge_index.shape[1], part.num_owned
    tensors = [isinstance(one, torch.Tensor) and one.dim() > 0 and not _are_edges(one) for _, one in given]
    differs = [
        [not is_tensor or len(one) != length for length in lengths]
        for (_, one), is_tensor in zip(given, tensors, strict=True)
    ]
    votes = part.ranks.all_reduce(torch.tensor(differs, dtype=torch.int64, device=part.device), Purpose.DISTRIBUTE)
    found = []
    for at, ((name, _), (of_edges, of_nodes)) in enumerate(zip(given, (votes == 0).tolist(), strict=True)):
        if of_edges and of_nodes and at and name[:1] != "x" and not name.startswith("edge"):
            raise SpecError(
                f"{name}: has a row for each edge, and there are as many nodes: of edge_index.flip(0) a layer's rows "
                "of edges have names that begin with edge"
            )
        found.append(of_edges and (not of_nodes or name.startswith("edge")))
    return found
