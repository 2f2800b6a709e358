"""The edges into a part's nodes, from owned and from halo nodes, as one list: what a user's network gets."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.partition.part import Part


@dataclass(frozen=True, slots=True)
class InEdges:
    """All edges that end at a part's nodes, by target and then by the source's global id: the same on any parts.

    Attributes:
        ends: Source row and target row of each edge; the sources are owned rows, then halo rows. (2, num_edges) int64
        indptr: Where each owned node's in-edges begin. (num_owned + 1,) int64
        weights: Weight of each edge; None if each is 1. (num_edges,) float32
        attributes: Features of each edge; None if there are none. (num_edges, k) float32
    """

    ends: NDArray[np.int64]
    indptr: NDArray[np.int64]
    weights: NDArray[np.float32] | None
    attributes: NDArray[np.float32] | None


def merge_in_edges(part: Part, *, with_loops: bool = False) -> InEdges:
    """Return the edges into the nodes of *part*.

    Args:
        part: The part.
        with_loops: Each owned node gets an edge to itself, of its weight in `Part.loops`: a diffused graph has them.
    """
    nodes = np.arange(part.num_owned, dtype=np.int64)
    targets = [np.repeat(nodes, np.diff(indptr)) for indptr in (part.owned_indptr, part.halo_indptr)]
    sources = [part.owned_indices.astype(np.int64), part.halo_indices.astype(np.int64) + part.num_owned]
    weights = [part.owned_weights, part.halo_weights]
    if with_loops:
        sources, targets, weights = [*sources, nodes], [*targets, nodes], [*weights, part.loops]
    ends = np.stack([np.concatenate(sources), np.concatenate(targets)])
    order = np.lexsort((np.concatenate([part.owned, part.halo])[ends[0]], ends[1]))
    is_weighted = with_loops or any(map(len, weights))
    attributes = np.concatenate([part.owned_edge_attr, part.halo_edge_attr])
    return InEdges(
        ends[:, order],
        np.concatenate(([0], np.cumsum(np.bincount(ends[1], minlength=part.num_owned)))),
        np.concatenate(weights)[order] if is_weighted else None,
        attributes[order] if attributes.shape[1] else None,
    )
