"""Who owns a node: METIS, for the least that parts send each other."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.edges import edge_matrix, symmetric
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.partition.statistics import count

#: METIS_OBJTYPE_VOL: total communication volume, for k-way partitioning only.
_VOLUME = 1
#: Directed edges from which on METIS sees some edges of each node. On 78 million edges it took a tenth of the time, and
#: cut as few of the whole graph's edges (12.9 % of them, to 0.1 points). It is asked for the volume only if edges times
#: parts are fewer: that takes a time that grows with both (2 million edges: 10 s for 8 parts, 118 s for 32).
LARGE = 20_000_000
_SEEN = 16
#: The largest number that METIS holds: its numbers have 32 bits.
MOST = 2**31 - 1


def assign(graph: Graph, num_parts: int, balance: str) -> NDArray[np.int64]:
    """Return the part that owns each node.

    METIS is asked twice, for the least total communication volume (k-way, several cuts) and for the least cut
    (recursive bisection, its default), and the assignment with the smaller halo is kept: the first is better on most
    graphs, by up to 29 %, and worse on some. Of a large graph, or for many parts, only the second is asked, of a large
    one for some of its edges. The seed is fixed: the same graph gives the same parts.

    Args:
        graph: The graph, symmetric: of a directed one its `structure()`.
        num_parts: Number of parts; more than there are nodes leaves parts empty.
        balance: What is balanced over the parts: "nodes", "edges" or "train" (training nodes).

    Returns:
        (num_nodes,) int64.
    """
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int64)
    if num_parts >= graph.num_nodes:
        return np.arange(graph.num_nodes, dtype=np.int64)
    weights = _weights(graph, balance)
    seen = sketch(graph)
    cut = metis(seen.indptr, seen.indices, num_parts, weights, by_volume=False)
    if len(graph.indices) * num_parts > LARGE:
        return cut
    volume = metis(graph.indptr, graph.indices, num_parts, weights, by_volume=True)
    return min((volume, cut), key=lambda owner: halo_size(graph, owner, num_parts))


def _weights(graph: Graph, balance: str) -> NDArray[np.int64] | None:
    if balance == "edges":
        return graph.degrees + 1
    if balance == "train":
        # A little for every node: METIS would else put all others into one part.
        return np.where(graph.split == TRAIN, max(1, graph.num_nodes // max(1, int((graph.split == TRAIN).sum()))), 1)
    return None


def metis(
    indptr: NDArray[Any],
    indices: NDArray[np.int32],
    num_parts: int,
    weights: NDArray[np.int64] | None,
    *,
    by_volume: bool,
) -> NDArray[np.int64]:
    """Return the part of each node, as METIS deals them out.

    Raises:
        InputError: The edges are more than METIS can count.
    """
    import pymetis

    if len(indices) > MOST:
        raise InputError(f"METIS counts up to {MOST:,} directed edges, and the graph has {len(indices):,}")

    options = pymetis.Options(seed=1, objtype=_VOLUME, ncuts=5) if by_volume else pymetis.Options(seed=1)
    adjacency = pymetis.CSRAdjacency(indptr, indices)
    _, owner = pymetis.part_graph(
        num_parts,
        adjacency,
        vweights=None if weights is None else fitting(weights),
        recursive=False if by_volume else None,
        options=options,
    )
    return np.asarray(owner, dtype=np.int64)


def fitting(weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return weights of 1 or more in the same proportion, as well as whole numbers can, whose sum METIS can hold."""
    excess = -(-int(weights.sum()) // (MOST - len(weights)))
    return weights if weights.sum() <= MOST else weights // excess + 1


def halo_size(graph: Graph, owner: NDArray[np.int64], num_parts: int) -> int:
    """Return how many halo nodes all parts have together: pairs of a node and another part that has a target of it."""
    return int(count(graph, owner, num_parts).traffic.sum())


def sketch(graph: Graph) -> sp.csr_array:
    """Return what METIS sees of a graph: all its edges, or, of a large one, some of each node."""
    return graph.adjacency() if len(graph.indices) <= LARGE else _thinned(graph)


def _thinned(graph: Graph) -> sp.csr_array:
    """Return some edges of each node, evenly spaced among its own, in both directions: enough to show its community."""
    nodes = np.flatnonzero(graph.degrees)
    degrees = graph.degrees[nodes]
    ends = np.concatenate([graph.indices[graph.indptr[nodes] + degrees * turn // _SEEN] for turn in range(_SEEN)])
    return symmetric(edge_matrix(np.tile(nodes, _SEEN), ends, graph.num_nodes))[0]
