"""What the parts of a graph have, and what they send each other, counted."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.data.graph import Graph

#: Edges, or pairs of a node and a part, that are looked at at a time.
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """A graph's parts, counted.

    Attributes:
        num_nodes: Nodes of the graph.
        nodes: Nodes of each part. (num_parts,)
        edges: Directed edges that end in each part. (num_parts,)
        cut: Edges between parts; those of both directions of a symmetric graph count once.
        traffic: Rows that part i sends to part j in an exchange. (num_parts, num_parts)
    """

    num_nodes: int
    nodes: NDArray[np.int64]
    edges: NDArray[np.int64]
    cut: int
    traffic: NDArray[np.int64]

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.nodes)

    @property
    def halo(self) -> NDArray[np.int64]:
        """Halo rows of each part. (num_parts,)"""
        return np.asarray(self.traffic.sum(axis=0))


def count(graph: Graph, owner: NDArray[np.int64], num_parts: int) -> PartitionStatistics:
    """Return what a partition's parts have, and what they send each other.

    Args:
        graph: The graph.
        owner: The part of each node. (num_nodes,)
        num_parts: Number of parts.
    """
    traffic, cut = np.zeros((num_parts, num_parts), np.int64), 0
    parts_of, by_source = owner.astype(np.int32), graph.reversed() if graph.is_directed else graph
    step = max(1, _PIECE // max(num_parts, len(graph.indices) // max(1, graph.num_nodes)))
    for begin in range(0, graph.num_nodes, step):
        end = min(begin + step, graph.num_nodes)
        near = np.zeros((end - begin, num_parts), bool)
        rows = np.repeat(np.arange(end - begin, dtype=np.int32), np.diff(by_source.indptr[begin : end + 1]))
        others = parts_of[by_source.indices[by_source.indptr[begin] : by_source.indptr[end]]]
        cut += int(np.count_nonzero(others != parts_of[begin:end][rows]))
        near[rows, others] = True
        near[np.arange(end - begin), owner[begin:end]] = False
        nodes, parts = np.nonzero(near)
        pairs = owner[begin:end][nodes] * num_parts + parts
        traffic += np.bincount(pairs, minlength=num_parts**2).reshape(num_parts, num_parts)
    edges = np.bincount(owner, weights=graph.degrees, minlength=num_parts).astype(np.int64)
    nodes_of = np.bincount(owner, minlength=num_parts)
    return PartitionStatistics(graph.num_nodes, nodes_of, edges, cut if graph.is_directed else cut // 2, traffic)
