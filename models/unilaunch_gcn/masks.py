"""The dropout masks of a part, made on the host for any framework."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import FloatType
from unilaunch_graph.dropout import entry_mask, fill_mask, stream_keys


class Masks:
    """Dropout masks that are made on the host.

    Args:
        tensor: Returns an array as a tensor of the device.
        dropout: Share that is dropped.
        seed: Seed of the training.
        nodes: Global ids of the owned nodes.
        dtype: Type of the masks.
    """

    def __init__(
        self, tensor: Callable[[Any], Any], dropout: float, seed: int, nodes: NDArray[np.int64], dtype: FloatType
    ) -> None:
        self.tensor, self.dropout, self.seed, self.nodes, self.dtype = tensor, dropout, seed, nodes, dtype

    def rows(self, epoch: int, depth: int, width: int) -> Any:
        """Return the mask of the owned rows that enter layer *depth*. (num_owned, width)"""
        out = np.empty((len(self.nodes), width), self.dtype)
        fill_mask(out, self.nodes, stream_keys(self.seed, epoch, depth), self.dropout)
        return self.tensor(out)

    def of_entries(self, rows: NDArray[Any], columns: NDArray[Any], width: int) -> Callable[[int], Any]:  # noqa: ARG002
        """Return the first layer's mask at single features, as a function of the epoch.

        Args:
            rows: Local row of each entry. (entries,)
            columns: Column of each entry. (entries,)
            width: Columns of the features.
        """
        nodes = self.nodes[rows]
        return lambda epoch: self.tensor(
            entry_mask(nodes, columns, stream_keys(self.seed, epoch, 0), self.dropout, self.dtype)
        )
