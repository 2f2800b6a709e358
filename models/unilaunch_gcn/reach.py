"""Which rows of a layer a training needs: those from which a path of the remaining layers leads to a training node."""

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.partition.statistics import Flags, PartitionStatistics, Traffic, count_traffic


def is_pruned(num_reached: int, num_nodes: int) -> bool:
    """Return whether a layer leaves out the rows that are not reached: at most half of the nodes are.

    Where more are, leaving out the rest gains less than gathering the rows costs. Without training nodes there is
    nothing to gain.
    """
    return 0 < 2 * num_reached <= num_nodes


def has_flagged(indptr: NDArray[np.int64], indices: NDArray[np.int32], flags: Flags) -> Flags:
    """Return which rows of a matrix have an entry in a flagged column. (rows,)

    Args:
        indptr: Where each row begins. (rows + 1,)
        indices: Column of each entry.
        flags: (columns,)
    """
    if not flags.any():
        return np.zeros(len(indptr) - 1, bool)
    matrix = sp.csr_array((np.ones(len(indices), bool), indices, indptr), shape=(len(indptr) - 1, len(flags)))
    found: Flags = matrix @ flags
    return found


def reached(
    split: NDArray[np.uint8], indptr: NDArray[np.int64], indices: NDArray[np.int32], num_layers: int
) -> list[Flags]:
    """Return the rows of an undirected graph that enter each layer in a training epoch, and those that leave the last.

    Args:
        split: As in `Graph`. (num_nodes,)
        indptr: Where each node's edges begin. (num_nodes + 1,)
        indices: Their other ends.
        num_layers: Number of layers.

    Returns:
        One array for each layer and one for the scores. All rows from the layer on, towards the first, where
        `is_pruned` says no. (num_layers + 1) x (num_nodes,)
    """
    levels: list[Flags] = []
    flags: Flags = split == TRAIN
    for _ in range(num_layers + 1):
        if not is_pruned(int(flags.sum()), len(split)):
            flags = np.ones(len(split), bool)
        levels.insert(0, flags)
        if not flags.all():
            flags = flags | has_flagged(indptr, indices, flags)
    return levels


def count_pruned(
    graph: Graph, owner: NDArray[np.int64], statistics: PartitionStatistics, num_layers: int
) -> PartitionStatistics:
    """Return the statistics of a training that leaves out the rows that no training node's loss reaches.

    Args:
        graph: The graph; an undirected one.
        owner: The part of each node. (num_nodes,)
        statistics: Its parts, counted.
        num_layers: Number of layers.
    """

    def traffic(sources: Flags, targets: Flags) -> Traffic:
        if sources.all() and targets.all():
            return statistics.traffic
        return count_traffic(graph, owner, statistics.num_parts, sources, targets)[0]

    every = np.ones(graph.num_nodes, bool)
    flags = reached(graph.split, graph.indptr, graph.indices, num_layers)
    return replace(
        statistics,
        exchanged=[(traffic(every, rows), traffic(rows, every)) for rows in flags[1:]],
        rows=[np.bincount(owner[rows], minlength=statistics.num_parts) for rows in flags],
    )
