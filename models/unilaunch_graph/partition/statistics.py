"""Partition statistics: the nodes and edges of each part, and the rows that the parts send each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.data.graph import Graph

Flags = NDArray[np.bool_]
#: Rows that part i sends to part j in an exchange. (num_parts, num_parts)
Traffic = NDArray[np.int64]
#: Edges, or pairs of a node and a part, that are processed at once.
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """The sizes of a graph's parts.

    Attributes:
        num_nodes: Nodes of the graph.
        nodes: Nodes of each part. (num_parts,)
        edges: Directed edges that end in each part. (num_parts,)
        cut: Edges between parts; in a symmetric graph the two directions count as one edge.
        traffic: Rows that part i sends to part j in an exchange of all halo rows.
        is_directed: Whether the graph is directed: then its edges are kept by source too.
        exchanged: The traffic of each layer's exchanges, forward and backward, in a training that leaves out rows;
            empty: each is *traffic*.
        rows: The nodes of each part whose rows enter each layer in such a training, and those that leave the last one;
            empty: all nodes.
    """

    num_nodes: int
    nodes: NDArray[np.int64]
    edges: NDArray[np.int64]
    cut: int
    traffic: Traffic
    is_directed: bool = False
    exchanged: Sequence[tuple[Traffic, Traffic]] = ()
    rows: Sequence[NDArray[np.int64]] = ()

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.nodes)

    @property
    def halo(self) -> NDArray[np.int64]:
        """Halo rows of each part. (num_parts,)"""
        return np.asarray(self.traffic.sum(axis=0))


def count(graph: Graph, owner: NDArray[np.int64], num_parts: int) -> PartitionStatistics:
    """Return the statistics of a partition.

    Args:
        graph: The graph.
        owner: The part of each node. (num_nodes,)
        num_parts: Number of parts.
    """
    by_source, every = graph.reversed() if graph.is_directed else graph, np.ones(graph.num_nodes, bool)
    traffic, cut = count_traffic(by_source, owner, num_parts, every, every)
    edges = np.bincount(owner, weights=graph.degrees, minlength=num_parts).astype(np.int64)
    nodes_of = np.bincount(owner, minlength=num_parts)
    cut = cut if graph.is_directed else cut // 2
    return PartitionStatistics(graph.num_nodes, nodes_of, edges, cut, traffic, graph.is_directed)


def count_traffic(
    by_source: Graph, owner: NDArray[np.int64], num_parts: int, sources: Flags, targets: Flags
) -> tuple[Traffic, int]:
    """Return the traffic, and the edges between parts, of the edges from some nodes to some nodes."""
    traffic, cut = np.zeros((num_parts, num_parts), np.int64), 0
    parts_of = owner.astype(np.int32)
    step = max(1, _PIECE // max(num_parts, len(by_source.indices) // max(1, by_source.num_nodes)))
    for begin in range(0, by_source.num_nodes, step):
        end = min(begin + step, by_source.num_nodes)
        near = np.zeros((end - begin, num_parts), bool)
        rows = np.repeat(np.arange(end - begin, dtype=np.int32), np.diff(by_source.indptr[begin : end + 1]))
        nodes = by_source.indices[by_source.indptr[begin] : by_source.indptr[end]]
        if not targets.all():
            rows, nodes = rows[targets[nodes]], nodes[targets[nodes]]
        others = parts_of[nodes]
        cut += int(np.count_nonzero(others != parts_of[begin:end][rows]))
        near[rows, others] = True
        near[np.arange(end - begin), owner[begin:end]] = False
        near[~sources[begin:end]] = False
        sent, parts = np.nonzero(near)
        pairs = owner[begin:end][sent] * num_parts + parts
        traffic += np.bincount(pairs, minlength=num_parts**2).reshape(num_parts, num_parts)
    return traffic, cut


def halo_size(graph: Graph, owner: NDArray[np.int64], num_parts: int) -> int:
    """Return the number of halo nodes of all parts: pairs of a node and another part with a target of the node."""
    return int(count(graph, owner, num_parts).traffic.sum())
