"""The edges of a part as the layers of our own use them, made once for each `edge_index`."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from unilaunch_graph.operators.edges import Edges
from unilaunch_graph.operators.row_blocks import make_pool
from unilaunch_graph.torch.part import GraphPart


@dataclass(frozen=True)
class LayerEdges:
    """The edges that a layer sums over.

    Attributes:
        edges: By target and by source, for the operators.
        chosen: Where each edge stands in `edge_index`; a self-loop that was added counts from its end on. None if the
            edges are those of `edge_index`. (edges,)
        made: What layers made of them.
    """

    edges: Edges
    chosen: torch.Tensor | None
    made: dict[Any, Any] = field(default_factory=dict)


_known: Any = WeakIdKeyDictionary()  # edge_index -> {with self-loops: LayerEdges}


def edges_of(part: GraphPart, *, self_loops: bool) -> LayerEdges:
    """Return the edges of *part*.

    Args:
        part: This rank's part.
        self_loops: Whether to replace the self-loops of the graph by one loop at each owned node, as PyG's
            `add_self_loops=True` does.
    """
    made = _known.setdefault(part.edge_index, {})
    if self_loops not in made:
        made[self_loops] = _make(part, self_loops=self_loops)
    found: LayerEdges = made[self_loops]
    return found


def _make(part: GraphPart, *, self_loops: bool) -> LayerEdges:
    source, target = part.edge_index.numpy()
    chosen = None
    if self_loops:
        kept, loop = np.flatnonzero(source != target), np.arange(part.num_owned)
        source, target = (np.concatenate((ends[kept], loop)) for ends in (source, target))
        order = np.argsort(target, kind="stable")
        chosen = torch.from_numpy(np.concatenate((kept, loop + part.edge_index.shape[1]))[order])
        source, target = source[order], target[order]
    indptr = np.concatenate(([0], np.cumsum(np.bincount(target, minlength=part.num_owned))))
    return LayerEdges(Edges(indptr, source.astype(np.int32), part.num_owned + part.num_halo), chosen)


@cache
def pool() -> ThreadPoolExecutor | None:
    """Return as many threads as torch has when this is first called; None if it has one."""
    return make_pool(torch.get_num_threads())


def check_rows(layer: str, rows: torch.Tensor, part: GraphPart) -> None:
    """Refuse rows that a layer of our own cannot use.

    Raises:
        TypeError: They are neither float32 nor float64, or not in the host's memory.
        ValueError: They are not the rows of the owned nodes.
    """
    if rows.device.type != "cpu" or rows.dtype not in {torch.float32, torch.float64}:
        raise TypeError(
            f"ug.torch.{layer}: {rows.dtype} on {rows.device}: it computes float32 and float64 in the host's memory; "
            f"elsewhere use torch_geometric.nn.{layer} with ug.torch.distribute"
        )
    if rows.ndim != 2 or len(rows) != part.num_owned:  # noqa: PLR2004
        raise ValueError(
            f"ug.torch.{layer}: x has the shape {tuple(rows.shape)}, not ({part.num_owned}, width): one row for each "
            "owned node of the part"
        )
