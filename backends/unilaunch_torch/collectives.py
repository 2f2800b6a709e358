"""Collectives on torch tensors: NCCL on cuda, HCCL on npu, gloo on cpu."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from typing_extensions import override

from unilaunch.backend import Collectives, Exchange


class TorchCollectives(Collectives):
    """torch.distributed's default group."""

    @override
    def all_reduce(self, buffer: torch.Tensor) -> None:
        dist.all_reduce(buffer)

    @override
    def exchange(
        self, send: torch.Tensor, send_counts: Sequence[int], receive: torch.Tensor, receive_counts: Sequence[int]
    ) -> Exchange:
        work = dist.all_to_all_single(receive, send, list(receive_counts), list(send_counts), async_op=True)
        return _TorchExchange(work)

    @override
    def broadcast(self, buffer: torch.Tensor, root: int) -> None:
        dist.broadcast(buffer, root)

    @override
    def barrier(self) -> None:
        dist.barrier()


class _TorchExchange(Exchange):
    def __init__(self, work: "dist.Work") -> None:
        self.work = work

    @override
    def progress(self) -> None:
        """Do nothing: torch's communication advances without calls."""

    @override
    def wait(self) -> None:
        self.work.wait()
