"""Assign an owner to each node: of several partitions, the one with the smallest halo is used."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.partition.partitioner import load_partitioner, smaller_halos
from unilaunch_graph.partition.statistics import halo_size

#: For a smaller halo, the heaviest part may be this many times as heavy as METIS's heaviest part.
_HEAVIER = 1.03


class Assignment(NamedTuple):
    """The owner of each node.

    Attributes:
        owner: The part of each node. (num_nodes,) int64
        partitioner: Name and version of the package that made the assignment; "none" if no partitioner was needed.
    """

    owner: NDArray[np.int64]
    partitioner: str


def assign(graph: Graph, num_parts: int, balance: str, partitioner: str = "auto") -> Assignment:
    """Return the part that owns each node; the same graph gives the same parts with the same packages.

    "auto" runs METIS, and every other installed partitioner that is meant for graphs of this size. Of the partitions
    whose heaviest part is at most 3 % heavier than METIS's (in the balanced quantity and in edges), it returns the one
    with the smallest halo.

    Args:
        graph: The graph, symmetric; for a directed graph its `structure()`.
        num_parts: Number of parts; if there are more parts than nodes, some are empty.
        balance: What is balanced over the parts: "nodes", "edges" or "train" (training nodes).
        partitioner: "auto", or the only partitioner to run.

    Raises:
        PluginError: *partitioner* is unknown or not installed.
    """
    chosen = None if partitioner == "auto" else load_partitioner(partitioner)
    if num_parts == 1:
        return Assignment(np.zeros(graph.num_nodes, np.int64), "none")
    if num_parts >= graph.num_nodes:
        return Assignment(np.arange(graph.num_nodes, dtype=np.int64), "none")
    weights = _weights(graph, balance)
    first = chosen or load_partitioner("metis")
    made = [Assignment(first.cut(graph, num_parts, weights), first.label)]
    for other in () if chosen else smaller_halos(len(graph.indices) * num_parts):
        try:
            made.append(Assignment(other.cut(graph, num_parts, weights), other.label))
        except Exception as error:  # noqa: BLE001  (of any kind, from an optional library: METIS has cut the graph)
            from loguru import logger

            logger.warning("--partitioner auto: {} fails, METIS's partition is used: {!r}", other.package, error)
    return best(graph, num_parts, weights, made)


def best(graph: Graph, num_parts: int, weights: NDArray[np.int64], made: list[Assignment]) -> Assignment:
    """Return the assignment with the smallest halo among those that are about as balanced as the first."""
    if len(made) == 1:
        return made[0]  # a halo takes a pass over all edges to count

    def heaviest(made: Assignment, of: NDArray[np.int64]) -> float:
        return float(np.bincount(made.owner, of, num_parts).max())

    limits = [(of, _HEAVIER * heaviest(made[0], of)) for of in (weights, graph.degrees)]
    balanced = [one for one in made if all(heaviest(one, of) <= limit for of, limit in limits)]
    return min(balanced, key=lambda one: halo_size(graph, one.owner, num_parts))


def _weights(graph: Graph, balance: str) -> NDArray[np.int64]:
    """Return the weight of each node: at least 1, since METIS would put all nodes without weight into one part."""
    if balance == "edges":
        return np.maximum(graph.degrees, 1)
    if balance == "train":
        trains = graph.split == TRAIN
        return np.where(trains, max(1, graph.num_nodes // max(1, int(trains.sum()))), 1)
    return np.ones(graph.num_nodes, np.int64)
