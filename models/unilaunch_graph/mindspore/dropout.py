"""Dropout that does not depend on the number of parts."""

import numpy as np
from mindspore import Tensor

from unilaunch_graph.dropout import fill_mask, stream_keys
from unilaunch_graph.mindspore.exchange import check_rows
from unilaunch_graph.mindspore.part import GraphPart


def dropout(  # noqa: PLR0913  (each names a coordinate of the mask)
    rows: Tensor, part: GraphPart, p: float, *, seed: int, step: int, layer: int = 0, training: bool = True
) -> Tensor:
    """Return *rows* with elements set to 0 with probability *p*, the others divided by 1 - p.

    Which ones depends on the seed, the step, the layer, the node's global id and the column, and on nothing else: any
    number of parts gives the same, and PyTorch too.

    Args:
        rows: One row for each owned node. (num_owned, width)
        part: This rank's part.
        p: Probability of an element to be dropped, 0 to 1, exclusive.
        seed: Seed of the training.
        step: Number of the epoch, or of the call: each draws anew.
        layer: Number of the layer, if there are several dropouts in a step.
        training: With False *rows* are returned as they are.

    Raises:
        ValueError: *p* is not in [0, 1), or *rows* has another shape.
    """
    if not 0 <= p < 1:
        raise ValueError(f"dropout p={p}: expected at least 0 and less than 1")
    check_rows(rows, part.num_owned, "num_owned")
    if not training or p == 0:
        return rows
    mask = np.empty((len(rows), rows.size // len(rows)), rows.asnumpy().dtype)
    fill_mask(mask, part.owned, stream_keys(seed, step, layer), p)
    return rows * Tensor.from_numpy(mask).reshape(rows.shape)
