"""The masks of `unilaunch_graph.dropout`, made by torch where the rows are: the same bits."""

from math import prod
from typing import Any

import numpy as np
import torch

from unilaunch_graph import dropout as host
from unilaunch_graph.arrays import FloatType

#: What each row is of, as int64: (nodes,), or for edges (sources, targets, repeats) as `dropout.edge_keys` takes them.
Ids = tuple[torch.Tensor] | tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiler would take numpy's functions for torch's
def mask_of_ids(
    ids: Ids, shape: tuple[int, ...], keys: tuple[int, int], probability: float, kind: torch.dtype
) -> torch.Tensor:  # fmt: skip
    """Return the mask of rows where their ids are.

    Args:
        ids: What each row is of.
        shape: The shape of the rows, and of the mask.
        keys: The mask's `dropout.stream_keys`.
        probability: Share that is dropped, below 1.
        kind: float32 or float64.
    """
    if ids[0].device.type == "cpu":
        first, *others = (one.numpy() for one in ids)
        words = host.edge_keys(first, others[0], others[1], keys) if others else host.row_keys(first, keys)
        dtype: FloatType = np.dtype(np.float64 if kind == torch.float64 else np.float32)
        return torch.from_numpy(host.mask_of_words(words, shape, keys, probability, dtype))
    rows = row_keys(*ids, keys) if len(ids) == 1 else edge_keys(*ids, keys)
    columns = column_keys(torch.arange(prod(shape[1:]), device=rows.device), keys)
    return kept(rows[:, None] ^ columns, probability, kind).view(shape)


def row_keys(nodes: torch.Tensor, keys: Any) -> torch.Tensor:
    """Return `dropout.row_keys`."""
    return _mix((nodes & 0xFFFFFFFF) ^ _mix((nodes >> 32) ^ keys[0]))


def edge_keys(
    sources: torch.Tensor, targets: torch.Tensor, repeats: torch.Tensor, keys: tuple[int, int]
) -> torch.Tensor:  # fmt: skip
    """Return `dropout.edge_keys`."""
    words = _mix(row_keys(sources, keys) ^ row_keys(targets, keys[::-1]))
    return (words + repeats * host.REPEAT) & 0xFFFFFFFF


def column_keys(columns: torch.Tensor, keys: Any) -> torch.Tensor:
    """Return `dropout.column_keys`."""
    return _mix((columns + keys[1]) & 0xFFFFFFFF)


def kept(words: torch.Tensor, probability: float, kind: torch.dtype) -> torch.Tensor:
    """Return the mask's elements of some places, from the word of each."""
    return (_mix(words) >= host.least_kept(probability)).to(kind) * host.scale_of_kept(probability)


def _mix(words: torch.Tensor) -> torch.Tensor:
    """Hash 32-bit words as `dropout.mix` does; they are held as int64, since torch has no unsigned products."""
    words = words ^ (words >> 16)
    words = (words * 0x7FEB352D) & 0xFFFFFFFF
    words = words ^ (words >> 15)
    words = (words * 0x846CA68B) & 0xFFFFFFFF
    return words ^ (words >> 16)
