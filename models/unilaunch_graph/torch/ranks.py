"""The communication of a network on tensors: sums, broadcasts, and the exchanges of rows.

The exchanges are linear operators on tensors, which `unilaunch_torch.linear.apply` differentiates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch_graph.comparison import NotCheckedError
from unilaunch_graph.network.ranks import OTHER_RANKS, SIMULATED, ScriptRanks
from unilaunch_graph.partition.part import Part
from unilaunch_graph.purpose import Purpose

#: MPI and numpy have no such floats: in the host's memory they are sent as integers. Sums are made in float32.
HALVES = {torch.bfloat16, torch.float16}
#: NCCL and torch have no such integers: between devices they are sent as others of the same size.
_SENT_AS = {
    torch.int16: torch.bfloat16, torch.uint16: torch.bfloat16, torch.uint32: torch.int32, torch.uint64: torch.int64,
}  # fmt: skip


class Ranks(ScriptRanks):
    """The ranks of a job, for tensors of any dtype on this rank's device.

    Args:
        rank: Index of this rank.
        size: Number of ranks.
        collectives: The data path: on host arrays, or on tensors of the device.
        device: The device of the tensors.

    Attributes:
        has_loss: Whether `mean` has made a loss of the whole graph.
        has_added: Whether `sum_gradients` has found gradients that were added to their sum.
        evaluated: Number of the last collective call before a model returned rows without gradients; 0: none has.
    """

    def __init__(self, rank: int, size: int, collectives: Collectives, device: torch.device) -> None:
        super().__init__(rank, size, collectives)
        self.device: torch.device = device
        self.has_loss: bool = False
        self.has_added: bool = False
        self.evaluated: int = 0

    @classmethod
    @override
    def of(cls, part: Any) -> Self:
        """As `ScriptRanks.of`; a compiler is not shown what asks the framework for its group."""
        if torch.compiler.is_compiling() and (ranks := part.ranks if part else cls.of_script):
            return ranks  # type: ignore[no-any-return]
        return super().of(part)

    def exchange(
        self,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive: torch.Tensor,
        receive_counts: Sequence[int],
        purpose: Purpose = Purpose.NONE,
    ) -> Exchange:
        """Start to send rows to every rank, and to receive rows from every rank.

        Args:
            send: Rows, grouped by the rank that they go to; contiguous. (sum(send_counts), ...)
            send_counts: Rows to each rank. (size,)
            receive: Where rows arrive, grouped by the rank that they come from; contiguous. (sum(receive_counts), ...)
            receive_counts: Rows from each rank. (size,)
            purpose: What the rows are exchanged for.
        """
        self._refuse_simulation()
        sent, received = self._bits(send), self._bits(receive)
        self.collectives.calls.purpose = purpose
        return self.collectives.exchange(sent, send_counts, received, receive_counts)

    @override
    def swap(
        self, rows: NDArray[Any], send_counts: Sequence[int], receive_counts: Sequence[int],
        purpose: Purpose = Purpose.FETCH,
    ) -> NDArray[Any]:  # fmt: skip
        sent = torch.from_numpy(rows).to(self.device)
        received = sent.new_empty((sum(receive_counts), *rows.shape[1:]))
        self.exchange(sent, send_counts, received, receive_counts, purpose).wait()
        arrived: NDArray[Any] = received.cpu().numpy()
        return arrived

    @override
    def total(self, numbers: NDArray[Any], purpose: Purpose = Purpose.FETCH) -> NDArray[Any]:
        summed: NDArray[Any] = self.all_reduce(torch.from_numpy(numbers).to(self.device), purpose).cpu().numpy()
        return summed

    def all_reduce(self, tensor: torch.Tensor, purpose: Purpose = Purpose.NONE) -> torch.Tensor:
        """Return the sum of *tensor* over all ranks: the same bits on every rank. The argument may be overwritten."""
        if self.size == 1:
            return tensor
        self._refuse_simulation()
        if tensor.dtype in HALVES:
            return self.all_reduce(tensor.float(), purpose).to(tensor.dtype)
        total = tensor.detach().contiguous()
        buffer = self._buffer(total.view(-1))
        self.collectives.calls.purpose = purpose
        self.collectives.all_reduce(buffer)
        return total

    def agree_on_flip(self, *, is_here: bool, edges: torch.Tensor | None) -> bool:
        """Return whether a layer is called with the flip of the part's edges.

        Args:
            is_here: Whether it is, by the numbers of this rank.
            edges: None: every rank can tell. Or the part's edges; then all ranks must call this. int64 (2, edges)
        """
        if edges is None or self.size == 1:
            return is_here
        votes = torch.tensor([is_here, not is_here and tells_flip(edges)], dtype=torch.int64, device=self.device)
        some, others = self.all_reduce(votes, Purpose.DISTRIBUTE).tolist()
        return some > 0 and not others

    def broadcast(self, tensor: torch.Tensor, purpose: Purpose = Purpose.DISTRIBUTE) -> None:
        """Overwrite *tensor* by rank 0's."""
        if self.size == 1:
            return
        self._refuse_simulation()
        whole = tensor.detach().contiguous()
        buffer = self._bits(whole.view(-1))
        self.collectives.calls.purpose = purpose
        self.collectives.broadcast(buffer, 0)
        tensor.detach().copy_(whole)

    @override
    def barrier(self) -> None:
        self._refuse_simulation()
        super().barrier()

    def _refuse_simulation(self) -> None:
        if SIMULATED.get() not in {None, self}:
            raise NotCheckedError(OTHER_RANKS)

    def _bits(self, tensor: torch.Tensor) -> Any:
        if self.device.type != "cpu":
            return self._buffer(tensor.view(_SENT_AS.get(tensor.dtype, tensor.dtype)))
        return self._buffer(tensor.view(torch.int16) if tensor.dtype in HALVES else tensor)

    def _buffer(self, tensor: torch.Tensor) -> Any:
        """Return the tensor as the collectives take it; nothing is copied."""
        return tensor.detach().numpy() if self.device.type == "cpu" else tensor.detach()


def tells_flip(edges: torch.Tensor) -> bool:
    """Return whether these edges differ from their flip: one of them is no loop. (2, edges)"""
    return not torch.equal(edges[0], edges[1])


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
