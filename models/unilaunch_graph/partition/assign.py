"""Assign an owner to each node."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import PluginError
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.partition.partitioner import Partitioner, load_partitioner
from unilaunch_graph.partition.refine import refine


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

    Args:
        graph: The graph, symmetric; for a directed graph its `structure()`.
        num_parts: Number of parts; if there are more parts than nodes, some are empty.
        balance: What is balanced over the parts: "nodes", "edges" or "train" (training nodes).
        partitioner: The partitioner that cuts; "auto": METIS.

    Raises:
        PluginError: *partitioner* is unknown or not installed, or gives nodes parts that there are not.
    """
    chosen = load_partitioner("metis" if partitioner == "auto" else partitioner)
    if num_parts == 1:
        return Assignment(np.zeros(graph.num_nodes, np.int64), "none", 0)
    if num_parts >= graph.num_nodes:
        return Assignment(np.arange(graph.num_nodes, dtype=np.int64), "none", len(graph.indices))
    weights = _weights(graph, balance)
    return _refined(graph, num_parts, weights, chosen)


def _refined(graph: Graph, num_parts: int, weights: NDArray[np.int64], partitioner: Partitioner) -> Assignment:
    owner = partitioner.cut(graph, num_parts, weights)
    if owner.shape != graph.degrees.shape or not 0 <= owner.min() <= owner.max() < num_parts:
        raise PluginError(
            f"{partitioner.label}: it must give each of {graph.num_nodes:,} nodes a part from 0 to {num_parts - 1}"
        )
    owner, halo = refine(graph, owner, num_parts, weights)
    return Assignment(owner, partitioner.label, halo)


def _weights(graph: Graph, balance: str) -> NDArray[np.int64]:
    """Return the weight of each node: at least 1, since METIS would put all nodes without weight into one part."""
    if balance == "edges":
        return np.maximum(graph.degrees, 1)
    if balance == "train":
        trains = graph.split == TRAIN
        return np.where(trains, max(1, graph.num_nodes // max(1, int(trains.sum()))), 1)
    return np.ones(graph.num_nodes, np.int64)
