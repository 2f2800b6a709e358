"""METIS, through pymetis: the partitioner that is always installed."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.errors import InputError
from unilaunch_graph.data.edges import edge_matrix, symmetric
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.partition.partitioner import Partitioner
from unilaunch_graph.partition.refine import refine

#: METIS_OBJTYPE_VOL: total communication volume; only for k-way partitioning.
_VOLUME = 1
#: Edges times parts up to which METIS also makes partitions for the volume: five, or one, which takes about 0.17 s for
#: each million.
_SMALL, _LARGE = 4_000_000, 20_000_000
#: Edges above which it makes none: there a refined cut has as small a halo, to 1 % (benchmarks/quality.py).
_MOST_EDGES = 2_000_000
#: Directed edges from which on METIS sees some edges of each node for the cut, if it has more. On 78 million it took a
#: tenth of the time, and cut as few of the whole graph's edges (12.9 % of them, to 0.1 points).
MANY = 1_000_000
_SEEN = 16
#: The largest number that METIS holds: its numbers have 32 bits.
MOST = 2**31 - 1


class Metis(Partitioner):
    """METIS, run for the least cut, and on a small graph also for the least communication volume (k-way).

    After refinement the smaller halo is used. Of many edges METIS sees some; the refinement sees all.
    """

    package = "pymetis"
    work = None  # auto always runs it

    @override
    def cut(self, graph: Graph, num_parts: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        seen = sketch(graph)
        cut = metis(seen.indptr, seen.indices, num_parts, weights)
        work = len(graph.indices) * num_parts
        if work > _LARGE or len(graph.indices) > _MOST_EDGES:
            return cut
        tries = 5 if work <= _SMALL else 1
        volume = metis(graph.indptr, graph.indices, num_parts, weights, objtype=_VOLUME, ncuts=tries)
        refined = [refine(graph, owner, num_parts, weights) for owner in (cut, volume)]
        return min(refined, key=lambda one: one.halo).owner


def metis(
    indptr: NDArray[Any],
    indices: NDArray[np.int32],
    num_parts: int,
    weights: NDArray[np.int64] | None,
    **options: int,
) -> NDArray[np.int64]:
    """Return the part of each node from METIS; the seed is fixed.

    Args:
        indptr: The graph's rows, CSR.
        indices: Neighbours.
        num_parts: Number of parts.
        weights: Weight of each node; None: 1.
        options: Options of METIS by their names in its manual; without any, it looks for the least cut.

    Raises:
        InputError: There are more edges than METIS can count.
    """
    import pymetis

    if len(indices) > MOST:
        raise InputError(f"METIS counts up to {MOST:,} directed edges, and the graph has {len(indices):,}")

    adjacency = pymetis.CSRAdjacency(indptr, indices)
    _, owner = pymetis.part_graph(
        num_parts,
        adjacency,
        vweights=None if weights is None else fitting(weights),
        recursive=False if "objtype" in options else None,
        options=pymetis.Options(seed=1, **options),
    )
    return np.asarray(owner, dtype=np.int64)


def fitting(weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return integer weights of at least 1 in nearly the same proportion, whose sum fits METIS's 32-bit numbers."""
    excess = -(-int(weights.sum()) // (MOST - len(weights)))
    return weights if weights.sum() <= MOST else weights // excess + 1


def sketch(graph: Graph) -> sp.csr_array:
    """Return the graph for METIS: with all edges, or with some edges of each node if there are many."""
    is_thinned = len(graph.indices) > max(MANY, _SEEN * graph.num_nodes)
    return _thinned(graph) if is_thinned else graph.adjacency()


def _thinned(graph: Graph) -> sp.csr_array:
    """Return some edges of each node, evenly spaced among its edges, in both directions: they show its community."""
    nodes = np.flatnonzero(graph.degrees)
    degrees = graph.degrees[nodes]
    ends = np.concatenate([graph.indices[graph.indptr[nodes] + degrees * turn // _SEEN] for turn in range(_SEEN)])
    return symmetric(edge_matrix(np.tile(nodes, _SEEN), ends, graph.num_nodes))[0]
