"""The edges into a part's nodes, from owned and from halo nodes, as one list."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.partition.part import Part


@dataclass(frozen=True, slots=True)
class InEdges:
    """All edges that end at a part's nodes, in the order of their targets.

    Attributes:
        indptr: Where each node's in-edges begin. (num_owned + 1,) int64
        sources: Row of each edge's source: owned rows first, then halo rows. (num_edges,) int32
        weights: Weight of each edge; of no length if each is 1. float32
    """

    indptr: NDArray[np.int64]
    sources: NDArray[np.int32]
    weights: NDArray[np.float32]

    @property
    def targets(self) -> NDArray[np.int32]:
        """Row of each edge's target. (num_edges,) int32"""
        return np.repeat(np.arange(len(self.indptr) - 1, dtype=np.int32), np.diff(self.indptr))


def in_edges(part: Part) -> InEdges:
    """Return the edges into the nodes of *part*; a node's edges from owned nodes come before those from halo nodes."""
    from_owned = np.arange(len(part.owned_indices)) + np.repeat(part.halo_indptr[:-1], np.diff(part.owned_indptr))
    from_halo = np.arange(len(part.halo_indices)) + np.repeat(part.owned_indptr[1:], np.diff(part.halo_indptr))

    def merged(owned: NDArray, halo: NDArray) -> NDArray:
        values = np.empty((len(from_owned) + len(from_halo), *owned.shape[1:]), owned.dtype)
        values[from_owned], values[from_halo] = owned, halo
        return values

    sources = merged(part.owned_indices, part.halo_indices + np.int32(part.num_owned))
    is_weighted = len(part.owned_weights) + len(part.halo_weights) > 0
    weights = merged(part.owned_weights, part.halo_weights) if is_weighted else part.owned_weights
    return InEdges(part.owned_indptr + part.halo_indptr, sources, weights)
