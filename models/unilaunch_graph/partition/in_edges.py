"""The in-edges of a part's nodes, from owned and from halo nodes, as one list, for a user's network."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.data.edges import EDGE_IDS, NamedArrays
from unilaunch_graph.partition.part import Part


@dataclass(frozen=True, slots=True)
class InEdges:
    """All in-edges of a part's nodes, sorted by target and then by the source's global id, for any partition.

    Attributes:
        ends: Source row and target row of each edge; source rows number the owned nodes, then the halo nodes.
            (2, edges) int64
        indptr: Index of the first in-edge of each owned node. (num_owned + 1,) int64
        weights: Weight of each edge; empty if each is 1. float32
        arrays: Further arrays of the edges by name, without `EDGE_IDS`. (edges, ...)
    """

    ends: NDArray[np.int64]
    indptr: NDArray[np.int64]
    weights: NDArray[np.float32]
    arrays: NamedArrays


def merge_in_edges(part: Part) -> InEdges:
    """Return the in-edges of the nodes of *part*."""
    ends, order = _ends(part)
    weights = np.concatenate([part.owned_weights, part.halo_weights])
    return InEdges(
        ends[:, order],
        part.owned_indptr + part.halo_indptr,
        weights[order] if len(weights) else weights,
        {
            name: np.concatenate([array, part.halo_edge_arrays[name]])[order]
            for name, array in part.owned_edge_arrays.items()
            if name != EDGE_IDS
        },
    )


def edge_ids(part: Part) -> NDArray[np.int64] | None:
    """Return the position of each of `merge_in_edges` in the user's list of edges; None: they are not the user's."""
    if EDGE_IDS not in part.owned_edge_arrays:
        return None
    ids = np.concatenate([part.owned_edge_arrays[EDGE_IDS], part.halo_edge_arrays[EDGE_IDS]])
    return ids[_ends(part)[1]].astype(np.int64)


def _ends(part: Part) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ends of the edges from owned nodes, then from halo nodes, and the order of `InEdges`."""
    nodes = np.arange(part.num_owned, dtype=np.int64)
    targets = [np.repeat(nodes, np.diff(indptr)) for indptr in (part.owned_indptr, part.halo_indptr)]
    sources = [part.owned_indices.astype(np.int64), part.halo_indices.astype(np.int64) + part.num_owned]
    ends = np.stack([np.concatenate(sources), np.concatenate(targets)])
    return ends, np.lexsort((np.concatenate([part.owned, part.halo])[ends[0]], ends[1]))
