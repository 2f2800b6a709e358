"""Which nodes to train on, to validate with and to test with, where a data set does not say."""

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL

TRAIN_PER_CLASS, VAL_PER_CLASS = 20, 30


def draw_split(labels: NDArray[np.int64], seed: int) -> NDArray[np.uint8]:
    """Draw 20 nodes of each class to train on and 30 to validate with; the rest of it is to test with.

    A small class is shared out: at most a third of it, rounded up, is to train on, and at most half of what remains
    to validate with. A node of unknown class is not used.

    Args:
        labels: Class of each node, -1 where unknown. (num_nodes,)
        seed: Seed of the draw; 0 or more.

    Returns:
        NONE, TRAIN, VAL or TEST of each node. (num_nodes,) uint8
    """
    lottery = np.random.Generator(np.random.Philox(seed)).random(len(labels))
    order = np.lexsort((lottery, labels))
    place, size = place_in_class(labels[order])
    train = np.minimum(TRAIN_PER_CLASS, (size + 2) // 3)
    val = np.minimum(VAL_PER_CLASS, (size - train) // 2)
    split = np.empty(len(labels), np.uint8)
    split[order] = np.select([labels[order] < 0, place < train, place < train + val], [NONE, TRAIN, VAL], TEST)
    return split


def place_in_class(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, of each of these ascending *labels*, how many equal ones stand before it and how many there are."""
    first = np.searchsorted(labels, labels, side="left")
    size = np.searchsorted(labels, labels, side="right") - first
    return np.arange(len(labels)) - first, size
