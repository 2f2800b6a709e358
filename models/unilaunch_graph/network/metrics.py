"""Metrics of the whole graph, the same on every rank."""

from typing import Any

import numpy as np

from unilaunch_graph.network.checks import check_count, check_rows
from unilaunch_graph.purpose import Purpose


def accuracy(out: Any, y: Any, mask: Any, part: Any) -> float:
    """Return the share of the nodes in *mask* whose highest score is that of their class: the same on every rank.

    All ranks must call this, and may decide by it: early stopping, a scheduler, the best model so far.

    Args:
        out: Scores of the owned nodes. (num_owned, num_classes)
        y: Their classes: `part.y`. (num_owned,) integers
        mask: Which nodes count: `part.val_mask`, say. (num_owned,) bool
        part: This rank's part.

    Raises:
        ValueError: *out*, *y* or *mask* has another shape.
        InputError: No node of any rank is in *mask*.
    """
    for rows, num_axes in ((out, 2), (y, 1), (mask, 1)):
        check_rows(rows, part.num_owned, "num_owned")
        if rows.ndim != num_axes:
            raise ValueError(f"accuracy: a tensor has the shape {tuple(rows.shape)}: expected {num_axes} axes")
    hits = (out.argmax(1) == y) & mask
    right, count = part.ranks.total(np.array([float(hits.sum()), float(mask.sum())]), Purpose.ACCURACY)
    check_count(int(count))
    return float(right / count)
