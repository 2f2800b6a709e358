"""The dropout of a training with torch on a device; the keys of an epoch are on the device too."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch_gcn.masks import Masks
from unilaunch_graph.arrays import FloatType
from unilaunch_graph.dropout import stream_keys
from unilaunch_graph.operators.epilogue import Dropout
from unilaunch_graph.operators.torch_masks import hash_places, kept, mask_of_rows


class DeviceMasks(Masks):
    """Dropout on a device. Nothing is copied from the host within an epoch but the epoch's keys, before it begins.

    Args:
        dropout: Share that is dropped.
        seed: Seed of the training.
        owned: Global ids of the owned nodes, on the device. (num_owned,) int64
        dtype: Type of the masks.
        num_layers: Number of layers.
    """

    def __init__(self, dropout: float, seed: int, owned: torch.Tensor, dtype: FloatType, num_layers: int) -> None:
        self.dropout, self.seed, self.owned = dropout, seed, owned
        self.kind: torch.dtype = getattr(torch, dtype.name)
        self.keys = torch.zeros(num_layers, 2, dtype=torch.int64, device=owned.device)
        # Two, in turn: the copy of one epoch may still be queued while the next epoch's keys are written.
        pinned = owned.device.type == "cuda"
        self.staged = [torch.zeros(num_layers, 2, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]

    def start_epoch(self, epoch: int) -> None:
        """Queue the copy of an epoch's keys to the device."""
        staged = self.staged[epoch % 2]
        staged.numpy()[:] = [stream_keys(self.seed, epoch, depth) for depth in range(len(staged))]
        self.keys.copy_(staged, non_blocking=True)

    def of_layer(self, depth: int) -> Dropout:
        """Return the dropout of the rows that enter layer *depth*, in the epoch that has been started."""
        return Dropout(self.owned, self.keys[depth], self.dropout)

    @override
    def rows(self, epoch: int, depth: int, width: int) -> torch.Tensor:
        """Return the mask of the epoch that has been started. (num_owned, width)"""
        return mask_of_rows(self.of_layer(depth), width, self.kind)

    @override
    def of_entries(self, rows: NDArray[Any], columns: NDArray[Any], width: int) -> Callable[[int], torch.Tensor]:
        row, column = (torch.as_tensor(places.astype(np.int64), device=self.keys.device) for places in (rows, columns))

        def mask(_: int) -> torch.Tensor:
            row_keys, column_keys = hash_places(self.of_layer(0), width)
            return kept(row_keys[row] ^ column_keys[column], self.of_layer(0), self.kind)

        return mask
