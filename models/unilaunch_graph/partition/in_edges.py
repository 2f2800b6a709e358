"""The in-edges of a part's nodes, from owned and from halo nodes, as one list, for a user's network."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.partition.part import Part


@dataclass(frozen=True, slots=True)
class InEdges:
    """All in-edges of a part's nodes, sorted by target and then by the source's global id, for any partition.

    Attributes:
        ends: Source row and target row of each edge; source rows number the owned nodes, then the halo nodes.
            (2, edges) int64
        indptr: Index of the first in-edge of each owned node. (num_owned + 1,) int64
        weights: Weight of each edge; empty if each is 1. float32
        edge_attr: Features of each edge; k is 0 if there are none. (edges, k) float32
    """

    ends: NDArray[np.int64]
    indptr: NDArray[np.int64]
    weights: NDArray[np.float32]
    edge_attr: NDArray[np.float32]


def merge_in_edges(part: Part) -> InEdges:
    """Return the in-edges of the nodes of *part*."""
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
        edge_attr[order] if edge_attr.shape[1] else np.zeros((len(order), 0), np.float32),
    )
