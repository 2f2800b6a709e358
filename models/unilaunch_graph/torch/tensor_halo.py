"""The halo exchange as a linear operator on tensors, which `unilaunch_torch.linear.apply` differentiates."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unilaunch_graph.torch.ranks import Ranks


@dataclass(frozen=True, slots=True)
class TensorHalo:
    """(num_owned, ...) -> (num_owned + num_halo, ...). The transpose sums halo rows at their owners.

    Attributes:
        rows: For each receiver, the owned rows that are halo rows there; within one receiver no row twice. int64
        every: All of them, one receiver after the other. (num_sent,) int64
        send_counts: Rows to each rank. (world_size,)
        receive_counts: Halo rows of each owner. (world_size,)
        ranks: The other ranks.
    """

    rows: tuple[torch.Tensor, ...]
    every: torch.Tensor
    send_counts: list[int]
    receive_counts: list[int]
    ranks: Ranks

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return owned and halo rows in new memory: autograd's saved tensors are never overwritten."""
        num_owned = len(rows)
        sent = rows.index_select(0, self.every)
        whole = rows.new_empty((num_owned + sum(self.receive_counts), *rows.shape[1:]))
        exchange = self.ranks.exchange(sent, self.send_counts, whole[num_owned:], self.receive_counts)
        whole[:num_owned] = rows
        exchange.wait()
        return whole

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the owned rows plus the halo rows of other ranks for these nodes."""
        num_owned = len(rows) - sum(self.receive_counts)
        halo_rows = rows[num_owned:].contiguous()
        arrived = rows.new_empty((len(self.every), *rows.shape[1:]))
        exchange = self.ranks.exchange(halo_rows, self.receive_counts, arrived, self.send_counts)
        total = rows[:num_owned].clone(memory_format=torch.contiguous_format)
        exchange.wait()
        for chosen, addends in zip(self.rows, torch.split(arrived, self.send_counts), strict=True):
            # No row stands twice in *chosen*: a plain write after a read, which is the same in every run, on CUDA too.
            total[chosen] = total[chosen] + addends
        return total


def tensor_halo(send_rows: NDArray[Any], send_counts: list[int], receive_counts: list[int], ranks: Ranks) -> TensorHalo:
    """Return the exchange in which this rank sends these rows, grouped by receiver, and receives as many as told."""
    every = torch.from_numpy(send_rows.astype(np.int64)).to(ranks.device)
    return TensorHalo(torch.split(every, send_counts), every, send_counts, receive_counts, ranks)
