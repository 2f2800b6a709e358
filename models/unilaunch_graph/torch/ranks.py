"""The communication of a network on tensors: the exchange of rows, sums and broadcasts."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch_graph.comparison import NotCheckedError
from unilaunch_graph.network.ranks import OTHER_RANKS, SIMULATED, ScriptRanks
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
    """

    def __init__(self, rank: int, size: int, collectives: Collectives, device: torch.device) -> None:
        super().__init__(rank, size, collectives)
        self.device: torch.device = device
        self.has_loss: bool = False
        self.has_added: bool = False

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
