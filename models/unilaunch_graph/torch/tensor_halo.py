"""The exchanges of rows as linear operators on tensors, which `unilaunch_torch.linear.apply` differentiates."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from unilaunch_graph.partition.part import Part
from unilaunch_graph.purpose import Purpose
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

    @classmethod
    def of(cls, part: Part, ranks: Ranks) -> "TensorHalo":
        """Return the exchange of a part."""
        every, counts = torch.from_numpy(part.send_rows.astype(np.int64)).to(ranks.device), part.send_counts.tolist()
        return cls(torch.split(every, counts), every, counts, part.halo_counts.tolist(), ranks)

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return owned and halo rows in new memory: autograd's saved tensors are never overwritten."""
        num_owned = len(rows)
        sent = rows.index_select(0, self.every)
        whole = rows.new_empty((num_owned + sum(self.receive_counts), *rows.shape[1:]))
        exchange = self.ranks.exchange(sent, self.send_counts, whole[num_owned:], self.receive_counts, Purpose.HALO)
        whole[:num_owned] = rows
        exchange.wait()
        return whole

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the owned rows plus the halo rows of other ranks for these nodes."""
        num_owned = len(rows) - sum(self.receive_counts)
        halo_rows = rows[num_owned:].contiguous()
        arrived = rows.new_empty((len(self.every), *rows.shape[1:]))
        exchange = self.ranks.exchange(halo_rows, self.receive_counts, arrived, self.send_counts, Purpose.SUM_HALO)
        total = rows[:num_owned].clone(memory_format=torch.contiguous_format)
        exchange.wait()
        add_in_order(total, self.rows, torch.split(arrived, self.send_counts))
        return total


@dataclass(frozen=True, slots=True)
class TensorFetch:
    """(num_owned, ...) -> (rows that come, ...): those that this rank has asked for. The transpose sums at the owners.

    Attributes:
        send_rows: Owned rows that were asked for, grouped by the rank that did; of one rank no row twice. int64
        send_counts: Rows to each rank. (world_size,)
        receive_counts: Rows from each rank. (world_size,)
        num_owned: Rows of this rank.
        ranks: All ranks.
    """

    send_rows: torch.Tensor
    send_counts: list[int]
    receive_counts: list[int]
    num_owned: int
    ranks: Ranks

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows that come, in new memory."""
        sent = rows.index_select(0, self.send_rows)
        return self._exchanged(sent, self.send_counts, self.receive_counts)

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return for each owned row the sum of the rows that all ranks have for it."""
        arrived = self._exchanged(rows.contiguous(), self.receive_counts, self.send_counts)
        total = rows.new_zeros((self.num_owned, *rows.shape[1:]))
        add_in_order(total, torch.split(self.send_rows, self.send_counts), torch.split(arrived, self.send_counts))
        return total

    def _exchanged(self, rows: torch.Tensor, send_counts: list[int], receive_counts: list[int]) -> torch.Tensor:
        arrived = rows.new_empty((sum(receive_counts), *rows.shape[1:]))
        self.ranks.exchange(rows, send_counts, arrived, receive_counts, Purpose.FETCH).wait()
        return arrived


@dataclass(frozen=True, slots=True)
class TensorEdges:
    """(edges into the owned nodes, ...) -> (edges out of them, ...), of the reversed part. The transpose brings back.

    Attributes:
        leaving: Brings each edge's row to the owner of the edge's source.
        places: The place of each edge of the reversed part among those that arrive; none twice. int64
    """

    leaving: TensorFetch
    places: torch.Tensor

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of the reversed part's edges, in new memory."""
        return self.leaving.matmat(rows).index_select(0, self.places)

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of the part's edges, in new memory."""
        return self.leaving.rmatmat(torch.empty_like(rows).index_copy_(0, self.places, rows))


def add_in_order(total: torch.Tensor, rows: Sequence[torch.Tensor], addends: Sequence[torch.Tensor]) -> None:
    """Add to rows of *total* what each rank has for them: plain writes after reads, the same in every run, on CUDA too.

    Args:
        total: Is changed.
        rows: Of each rank, the rows; no row twice.
        addends: Of each rank, what is added.
    """
    for chosen, more in zip(rows, addends, strict=True):
        total[chosen] = total[chosen] + more
