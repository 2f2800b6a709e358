"""Dropout that does not depend on the number of parts."""

from typing import Any, TypeVar

from unilaunch_graph.dropout import stream_keys
from unilaunch_graph.network.checks import check_floats, check_probability, check_rows

Tensor = TypeVar("Tensor")


def dropout(  # noqa: PLR0913  (each names a coordinate of the mask)
    rows: Tensor, part: Any, p: float, *, seed: int, step: int, layer: int = 0, training: bool = True
) -> Tensor:
    """Return *rows* with elements set to 0 with probability *p*, the others divided by 1 - p.

    Which ones depends on the seed, the step, the layer, the node's global id and the column, and on nothing else: any
    number of parts gives the same, and PyTorch and MindSpore give the same.

    Args:
        rows: One row for each owned node. (num_owned, width)
        part: This rank's part.
        p: Probability of an element to be dropped, 0 to 1, exclusive.
        seed: Seed of the training.
        step: Number of the epoch, or of the call: each draws anew.
        layer: Number of the layer, if there are several dropouts in a step.
        training: With False *rows* are returned as they are.

    Raises:
        ValueError: *p* is not in [0, 1), or *rows* does not have num_owned rows.
        TypeError: *rows* are integers, which cannot be divided by 1 - p.
    """
    check_probability("dropout: p", p)
    check_rows(rows, part.num_owned, "num_owned")
    if not training or p == 0:
        return rows
    check_floats("dropout", rows)
    result: Tensor = part.masked(rows, stream_keys(seed, step, layer), p)
    return result
