"""The masks of `unilaunch_graph.dropout`, made by torch on a device; the keys of an epoch are on the device too."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch_gcn.tensors import Masks
from unilaunch_graph.arrays import FloatType
from unilaunch_graph.dropout import stream_keys
from unilaunch_graph.operators.epilogue import Dropout


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
            row_keys, column_keys = _keys(self.of_layer(0), width)
            return _kept(row_keys[row] ^ column_keys[column], self.of_layer(0), self.kind)

        return mask


def mask_of_rows(dropout: Dropout, width: int, kind: torch.dtype) -> torch.Tensor:
    """Return 0 where an element is dropped, and 1 / (1 - probability) where it is kept. (rows, width)"""
    rows, columns = _keys(dropout, width)
    return _kept(rows[:, None] ^ columns, dropout, kind)


def _keys(dropout: Dropout, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `dropout.row_keys` and `dropout.column_keys`."""
    first, second = dropout.keys[0], dropout.keys[1]
    columns = torch.arange(width, device=dropout.keys.device)
    rows = _mix((dropout.nodes & 0xFFFFFFFF) ^ _mix((dropout.nodes >> 32) ^ first))
    return rows, _mix((columns + second) & 0xFFFFFFFF)


def _kept(words: torch.Tensor, dropout: Dropout, kind: torch.dtype) -> torch.Tensor:
    return (_mix(words) >= dropout.least).to(kind) * dropout.scale


def _mix(words: torch.Tensor) -> torch.Tensor:
    """Hash 32-bit words as `dropout.mix` does; they are held as int64, since torch has no unsigned products."""
    words = words ^ (words >> 16)
    words = (words * 0x7FEB352D) & 0xFFFFFFFF
    words = words ^ (words >> 15)
    words = (words * 0x846CA68B) & 0xFFFFFFFF
    return words ^ (words >> 16)
