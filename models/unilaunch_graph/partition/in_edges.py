"""The edges into a part's nodes, from owned and from halo nodes, as one list: what a network of the user's own gets."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.partition.part import Part


@dataclass(frozen=True, slots=True)
class InEdges:
    """All edges that end at a part's nodes, by target and then by the source's global id: the same for any parts.

    Attributes:
        ends: Source row and target row of each edge; the sources are owned rows, then halo rows. (2, edges) int64
        indptr: Where each owned node's in-edges begin. (num_owned + 1,) int64
        weights: Weight of each edge; of no length if each is 1. float32
        edge_attr: Features of each edge; k is 0 if there are none. (edges, k) float32
    """

    ends: NDArray[np.int64]
    indptr: NDArray[np.int64]
    weights: NDArray[np.float32]
    edge_attr: NDArray[np.float32]


def merge_in_edges(part: Part) -> InEdges:
    """Return the edges into the nodes of *part*."""
    nodes = np.arange(part.num_owned, dtype=np.int64)
    targets = [np.repeat(nodes, np.diff(indptr)) for indptr in (part.owned_indptr, part.halo_indptr)]
    sources = [part.owned_indices.astype(np.int64), part.halo_indices.astype(np.int64) + part.num_owned]
    ends = np.stack([np.concatenate(sources), np.concatenate(targets)])
    order = np.lexsort((np.concatenate([part.owned, part.halo])[ends[0]], ends[1]))
    weights = np.concatenate([part.owned_weights, part.halo_weights])
    edge_attr = np.concatenate([part.owned_edge_attr, part.halo_edge_attr])
    return InEdges(
        ends[:, order],
        part.owned_indptr + part.halo_indptr,
        weights[order] if len(weights) else weights,
        edge_attr[order],
    )
