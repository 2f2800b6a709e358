"""Dropout that does not depend on the number of parts."""

import numpy as np
import torch

from unilaunch_graph.arrays import Floats
from unilaunch_graph.dropout import fill_mask, stream_keys
from unilaunch_graph.torch.part import GraphPart


def dropout(  # noqa: PLR0913  (they name the mask)
    rows: torch.Tensor, part: GraphPart, p: float, *, seed: int, step: int, layer: int = 0, training: bool = True
) -> torch.Tensor:
    """Return *rows* with elements set to 0 with probability *p*, the others divided by 1 - p.

    Which ones depends on the seed, the step, the layer, the node's global id and the column, and on nothing else: any
    number of parts gives the same, and MindSpore too.

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
    if rows.dim() != 2 or len(rows) != part.num_owned:  # noqa: PLR2004  (rows and columns)
        raise ValueError(f"dropout: rows have the shape {tuple(rows.shape)}: expected ({part.num_owned}, width)")
    if not training or p == 0:
        return rows
    mask: Floats = np.empty(tuple(rows.shape), np.float64 if rows.dtype == torch.float64 else np.float32)
    fill_mask(mask, part.owned.cpu().numpy(), stream_keys(seed, step, layer), p)
    return rows * torch.from_numpy(mask).to(rows.device, rows.dtype)
