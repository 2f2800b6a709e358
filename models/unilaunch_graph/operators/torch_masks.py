"""The masks of `unilaunch_graph.dropout`, made by torch where the rows are: the same bits."""

import torch

from unilaunch_graph.operators.epilogue import Dropout


def mask_of_rows(dropout: Dropout, width: int, kind: torch.dtype) -> torch.Tensor:
    """Return 0 where an element is dropped, and 1 / (1 - probability) where it is kept. (rows, width)"""
    rows, columns = hash_places(dropout, width)
    return kept(rows[:, None] ^ columns, dropout, kind)


def hash_places(dropout: Dropout, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `dropout.row_keys` and `dropout.column_keys`."""
    first, second = dropout.keys[0], dropout.keys[1]
    columns = torch.arange(width, device=dropout.nodes.device)
    rows = _mix((dropout.nodes & 0xFFFFFFFF) ^ _mix((dropout.nodes >> 32) ^ first))
    return rows, _mix((columns + second) & 0xFFFFFFFF)


def kept(words: torch.Tensor, dropout: Dropout, kind: torch.dtype) -> torch.Tensor:
    """Return the mask's elements of some places, from the word of each."""
    return (_mix(words) >= dropout.least).to(kind) * dropout.scale


def _mix(words: torch.Tensor) -> torch.Tensor:
    """Hash 32-bit words as `dropout.mix` does; they are held as int64, since torch has no unsigned products."""
    words = words ^ (words >> 16)
    words = (words * 0x7FEB352D) & 0xFFFFFFFF
    words = words ^ (words >> 15)
    words = (words * 0x846CA68B) & 0xFFFFFFFF
    return words ^ (words >> 16)
