"""The masks of `unilaunch_graph.dropout`, made by torch on a device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch_gcn.tensors import Masks
from unilaunch_graph.arrays import FloatType
from unilaunch_graph.dropout import stream_keys, threshold


class DeviceMasks(Masks):
    """Dropout masks in 32-bit words, held as int64: torch has no unsigned products.

    Args:
        dropout: Share that is dropped.
        seed: Seed of the training.
        nodes: Global ids of the owned nodes.
        dtype: Type of the masks.
        device: Where they are made.
    """

    def __init__(
        self, dropout: float, seed: int, nodes: NDArray[np.int64], dtype: FloatType, device: torch.device
    ) -> None:
        self.seed, self.device = seed, device
        self.low = torch.as_tensor(nodes & 0xFFFFFFFF, device=device)
        self.high = torch.as_tensor(nodes >> 32, device=device)
        self.least = min(threshold(dropout), 2**32 - 1)
        self.scale = 1.0 / (1.0 - dropout)
        self.kind: torch.dtype = getattr(torch, dtype.name)

    @override
    def rows(self, epoch: int, depth: int, width: int) -> torch.Tensor:
        rows, columns = self._keys(epoch, depth, width)
        return self._mask(rows[:, None] ^ columns)

    @override
    def of_entries(self, rows: NDArray[Any], columns: NDArray[Any], width: int) -> Callable[[int], torch.Tensor]:
        row, column = (torch.as_tensor(places.astype(np.int64), device=self.device) for places in (rows, columns))

        def mask(epoch: int) -> torch.Tensor:
            row_keys, column_keys = self._keys(epoch, 0, width)
            return self._mask(row_keys[row] ^ column_keys[column])

        return mask

    def _keys(self, epoch: int, depth: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `dropout.row_keys` and `dropout.column_keys`; nothing is copied from the host."""
        first, second = stream_keys(self.seed, epoch, depth)
        columns = torch.arange(width, device=self.device)
        return _mix(self.low ^ _mix(self.high ^ first)), _mix((columns + second) & 0xFFFFFFFF)

    def _mask(self, words: torch.Tensor) -> torch.Tensor:
        return (_mix(words) >= self.least).to(self.kind) * self.scale


def _mix(words: torch.Tensor) -> torch.Tensor:
    """Hash words as `dropout.mix` does."""
    words = words ^ (words >> 16)
    words = (words * 0x7FEB352D) & 0xFFFFFFFF
    words = words ^ (words >> 15)
    words = (words * 0x846CA68B) & 0xFFFFFFFF
    return words ^ (words >> 16)
