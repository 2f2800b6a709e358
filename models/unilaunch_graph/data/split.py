"""The training, validation and test nodes: from the masks that a data set brings, or drawn."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.data.arrays import check_range
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL
from unilaunch_graph.data.labels import Labels, Task, is_known, task_of

TRAIN_PER_CLASS, VAL_PER_CLASS = 20, 30
#: The shares of nodes to train on, to validate with and to test with, where nodes have no class.
SHARES = (0.6, 0.2, 0.2)
#: The names of the three uses in other libraries.
_NAMES = {"train": TRAIN, "val": VAL, "valid": VAL, "validation": VAL, "test": TEST}
#: A share times a number of nodes may differ from a whole number by its rounding.
_ROUNDING = 1e-6


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
        return _by_share(is_known(labels), lottery, SHARES)
    order = np.lexsort((lottery, labels))
    place, size = place_in_class(labels[order])
    train = np.minimum(TRAIN_PER_CLASS, (size + 2) // 3)
    val = np.minimum(VAL_PER_CLASS, (size - train) // 2)
    split = np.empty(len(labels), np.uint8)
    split[order] = np.select([labels[order] < 0, place < train, place < train + val], [NONE, TRAIN, VAL], TEST)
    return split


def draw_shares(known: NDArray[np.bool_], shares: Sequence[float]) -> NDArray[np.uint8]:
    """Draw shares of the nodes whose label is known, to train on, to validate with and to test with.

    Raises:
        ValueError: The shares are not three numbers of 0 or more with a sum of at most 1.
    """
    are_numbers = len(shares) == len(SHARES) and all(isinstance(share, int | float) for share in shares)
    if not are_numbers or min(shares) < 0 or sum(shares) > 1 + _ROUNDING:
        given = ", ".join(str(share) if are_numbers else type(share).__name__ for share in shares)
        raise ValueError(
            f"split=({given}): expected three shares of the nodes, as in split=(0.6, 0.2, 0.2), or nodes by name, as "
            'in split={"train": [0, 1], "valid": [2], "test": [3]}'
        )
    return _by_share(known, np.random.Generator(np.random.Philox(0)).random(len(known)), shares)


def _by_share(
    known: NDArray[np.bool_], lottery: NDArray[np.float64], shares: Sequence[float]
) -> NDArray[np.uint8]:  # fmt: skip
    nodes = np.flatnonzero(known)
    nodes = nodes[np.argsort(lottery[nodes], kind="stable")]
    train = ceil(len(nodes) * shares[0] - _ROUNDING)  # rounded up, the others down: one node is to train on
    val, test = (int(len(nodes) * share + _ROUNDING) for share in shares[1:])
    if sum(shares) > 1 - _ROUNDING:
        test = len(nodes)
    split = np.full(len(known), NONE, np.uint8)
    for use, begin, count in ((TRAIN, 0, train), (VAL, train, val), (TEST, train + val, test)):
        split[nodes[begin : begin + count]] = use
    return split


def split_of_nodes(chosen: Mapping[str, NDArray[Any]], num_nodes: int) -> NDArray[np.uint8]:
    """Return NONE, TRAIN, VAL or TEST of each node. (num_nodes,)

    Args:
        chosen: The nodes of "train", "val" (or "valid") and "test": their numbers (any,), or a mask (num_nodes,) bool.
        num_nodes: Number of nodes.

    Raises:
        ValueError: A name is another, an array is neither, or a node has two uses.
    """
    if strange := [name for name in chosen if name not in _NAMES]:
        raise ValueError(f"split has {strange[0]!r}: expected the names train, valid (or val) and test")
    masks: dict[str, NDArray[np.bool_]] = {name: np.zeros(num_nodes, bool) for name in ("train", "val", "test")}
    for name, nodes in chosen.items():
        is_mask = nodes.dtype.kind == "b"
        if nodes.ndim != 1 or (is_mask and len(nodes) != num_nodes) or nodes.dtype.kind not in "biu":
            raise ValueError(
                f"split[{name!r}] is {nodes.dtype} of the shape {nodes.shape}: expected numbers of nodes (any,), or a "
                f"mask ({num_nodes},) of bool"
            )
        if not is_mask:
            check_range(nodes, num_nodes, f"split[{name!r}]")
        masks[list(masks)[_NAMES[name] - TRAIN]][nodes] = True
    return split_of(masks)


def place_in_class(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, of each of these ascending *labels*, how many equal ones stand before it and how many there are."""
    first = np.searchsorted(labels, labels, side="left")
    size = np.searchsorted(labels, labels, side="right") - first
    return np.arange(len(labels)) - first, size
