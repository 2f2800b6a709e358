"""PyG's functions that add loops, or drop edges and features, on parts."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    dropout_adj,
    dropout_edge,
    mask_feature,
)

from unilaunch.errors import SpecError
from unilaunch_graph.torch.calls import Functions
from unilaunch_graph.torch.part import GraphPart

#: PyG's functions whose arguments decide whether they are right on a part.
DROPPING = (dropout_adj, dropout_edge, mask_feature)


def exact_changes(part: GraphPart) -> Functions:
    """Return the functions that replace PyG's in a module on *part*; arguments and results are the same."""

    def exact_mask_feature(
        x: torch.Tensor, p: float = 0.5, mode: str = "col", fill_value: float = 0.0, training: bool = True  # noqa: FBT001, FBT002
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        rows, mask = mask_feature(x, p, mode, fill_value, training)
        if mode != "col" or not training or p == 0:
            return rows, mask
        part.ranks.broadcast(mask)  # the columns that rank 0 has drawn: a column is of all nodes
        return x.masked_fill(~mask, fill_value), mask

    return {
        add_self_loops: _with_owned_nodes(add_self_loops, part),
        add_remaining_self_loops: _with_owned_nodes(add_remaining_self_loops, part),
        dropout_adj: _one_way(dropout_adj),
        dropout_edge: _one_way(dropout_edge),
        mask_feature: exact_mask_feature,
    }


def _with_owned_nodes(add: Callable[..., Any], part: GraphPart) -> Callable[..., Any]:
    """Let *add* give a loop to each owned node where the caller does not say how many nodes there are.

    PyG takes the largest number in the edges: that may be a halo node's, or none in a part without edges.
    """

    @wraps(add)
    def call(edge_index: Any, edge_attr: Any = None, fill_value: Any = None, num_nodes: Any = None) -> Any:
        return add(edge_index, edge_attr, fill_value, part.num_owned if num_nodes is None else num_nodes)

    return call


def _one_way(drop: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(drop)

    @wraps(drop)
    def call(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options).arguments
        if given.get("force_undirected") and given.get("training", True) and given.get("p", 0.5):
            raise SpecError(
                f"{drop.__name__}: force_undirected=True: an edge and the one back may be on two ranks, which draw for "
                "themselves: expected force_undirected=False, which drops each direction alone"
            )
        return drop(*args, **options)

    return call
