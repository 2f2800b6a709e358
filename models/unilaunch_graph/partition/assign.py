"""Assign an owner to each node: of several partitions, the one with the smallest halo is used."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import PluginError
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.partition.partitioner import Partitioner, load_partitioner, smaller_halos
from unilaunch_graph.partition.refine import IMBALANCE, refine

#: For a smaller halo, the heaviest part may be this many times as heavy as METIS's heaviest part is, or may be.
_HEAVIER = 1.03


class Assignment(NamedTuple):
    """The owner of each node.

    Attributes:
        owner: The part of each node. (num_nodes,) int64
        partitioner: Name and version of the package that made the assignment; "none" if no partitioner was needed.
        halo: Halo nodes of all parts.
    """

    owner: NDArray[np.int64]
    partitioner: str
    halo: int


def assign(graph: Graph, num_parts: int, balance: str, partitioner: str = "auto") -> Assignment:
    """Return the part that owns each node; the same graph gives the same parts with the same packages.

    "auto" runs METIS, and every other installed partitioner that is meant for graphs of this size. Of the refined ones
    whose heaviest part is at most 3 % heavier than METIS's is or may be (in the balanced quantity and in edges), it
    returns the one with the smallest halo.

    Args:
        graph: The graph, symmetric; for a directed graph its `structure()`.
        num_parts: Number of parts; if there are more parts than nodes, some are empty.
        balance: What is balanced over the parts: "nodes", "edges" or "train" (training nodes).
        partitioner: "auto", or the only partitioner to run.

    Raises:
        PluginError: *partitioner* is unknown or not installed, or gives nodes parts that there are not.
    """
    chosen = None if partitioner == "auto" else load_partitioner(partitioner)
    if num_parts == 1:
        return Assignment(np.zeros(graph.num_nodes, np.int64), "none", 0)
    if num_parts >= graph.num_nodes:
        return Assignment(np.arange(graph.num_nodes, dtype=np.int64), "none", len(graph.indices))
    weights = _weights(graph, balance)
    made = [_refined(graph, num_parts, weights, chosen or load_partitioner("metis"))]
    for other in () if chosen else smaller_halos(len(graph.indices) * num_parts):
        try:
            made.append(_refined(graph, num_parts, weights, other))
        except Exception as error:  # noqa: BLE001  (of any kind, from an optional library: METIS has cut the graph)
            from loguru import logger

            logger.warning("--partitioner auto: {} fails, METIS's partition is used: {!r}", other.package, error)
    return best(graph, num_parts, weights, made)


def _refined(graph: Graph, num_parts: int, weights: NDArray[np.int64], partitioner: Partitioner) -> Assignment:
    owner = partitioner.cut(graph, num_parts, weights)
    if owner.shape != graph.degrees.shape or not 0 <= owner.min() <= owner.max() < num_parts:
        raise PluginError(
            f"{partitioner.label}: it must give each of {graph.num_nodes:,} nodes a part from 0 to {num_parts - 1}"
        )
    owner, halo = refine(graph, owner, num_parts, weights)
    return Assignment(owner, partitioner.label, halo)


def best(graph: Graph, num_parts: int, weights: NDArray[np.int64], made: list[Assignment]) -> Assignment:
    """Return the assignment with the smallest halo among those that are about as balanced as the first."""

    def heaviest(made: Assignment, of: NDArray[np.int64]) -> float:
        return float(np.bincount(made.owner, of, num_parts).max())

    tolerated = (1 + IMBALANCE) / num_parts
    limits = [
        (of, _HEAVIER * max(heaviest(made[0], of), tolerated * float(of.sum()))) for of in (weights, graph.degrees)
    ]
    balanced = [one for one in made if all(heaviest(one, of) <= limit for of, limit in limits)]
    return min(balanced, key=lambda one: one.halo)


def _weights(graph: Graph, balance: str) -> NDArray[np.int64]:
    """Return the weight of each node: at least 1, since METIS would put all nodes without weight into one part."""
    if balance == "edges":
        return np.maximum(graph.degrees, 1)
    if balance == "train":
        trains = graph.split == TRAIN
        return np.where(trains, max(1, graph.num_nodes // max(1, int(trains.sum()))), 1)
    return np.ones(graph.num_nodes, np.int64)
