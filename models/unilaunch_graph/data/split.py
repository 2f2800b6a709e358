"""The training, validation and test nodes: from the masks that a data set brings, or drawn."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL
from unilaunch_graph.data.labels import Labels, Task, is_known, task_of

TRAIN_PER_CLASS, VAL_PER_CLASS = 20, 30


def split_of(masks: Mapping[str, NDArray[np.bool_]]) -> NDArray[np.uint8]:
    """Return NONE, TRAIN, VAL or TEST of each node. (num_nodes,)

    Args:
        masks: Which nodes are to train on, to validate with and to test with, in this order, by their names.

    Raises:
        ValueError: A node has two uses.
    """
    names, chosen = list(masks), list(masks.values())
    twice = np.flatnonzero(np.sum(chosen, axis=0) > 1)
    if len(twice):
        raise ValueError(f"node {twice[0]} is in more than one of {', '.join(names)}")
    return np.select(chosen, [TRAIN, VAL, TEST], NONE).astype(np.uint8)


def draw_split(labels: Labels, seed: int) -> NDArray[np.uint8]:
    """Draw the nodes for training, validation and test.

    Classes: 20 nodes of each class are to train on, 30 to validate with, the rest of it to test with. A small class is
    shared out: at most a third of it, rounded up, is to train on, and at most half of what remains to validate with.
    Several labels, or values: 60 % of the nodes are to train on, 20 % to validate with, 20 % to test with. A node
    without a known label is not used.

    Args:
        labels: As in `Graph.labels`.
        seed: Seed of the draw; 0 or more.

    Returns:
        NONE, TRAIN, VAL or TEST of each node. (num_nodes,) uint8
    """
    lottery = np.random.Generator(np.random.Philox(seed)).random(len(labels))
    if task_of(labels) is not Task.CLASSES:
        return _by_share(is_known(labels), lottery)
    order = np.lexsort((lottery, labels))
    place, size = place_in_class(labels[order])
    train = np.minimum(TRAIN_PER_CLASS, (size + 2) // 3)
    val = np.minimum(VAL_PER_CLASS, (size - train) // 2)
    split = np.empty(len(labels), np.uint8)
    split[order] = np.select([labels[order] < 0, place < train, place < train + val], [NONE, TRAIN, VAL], TEST)
    return split


def _by_share(known: NDArray[np.bool_], lottery: NDArray[np.float64]) -> NDArray[np.uint8]:
    nodes = np.flatnonzero(known)
    nodes = nodes[np.argsort(lottery[nodes], kind="stable")]
    train, val = -(-len(nodes) * 3 // 5), len(nodes) // 5  # rounded up and down: one node is to train on
    split = np.full(len(known), NONE, np.uint8)
    split[nodes] = TEST
    split[nodes[:train]], split[nodes[train : train + val]] = TRAIN, VAL
    return split


def place_in_class(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, of each of these ascending *labels*, how many equal ones stand before it and how many there are."""
    first = np.searchsorted(labels, labels, side="left")
    size = np.searchsorted(labels, labels, side="right") - first
    return np.arange(len(labels)) - first, size
