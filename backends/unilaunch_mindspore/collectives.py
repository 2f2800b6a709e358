"""Collectives on MindSpore tensors: HCCL on Ascend. MindSpore has no variable all-to-all on its other devices."""

from collections.abc import Sequence

from mindspore import Tensor
from mindspore.mint import distributed as dist
from typing_extensions import override

from unilaunch.backend import Collectives, Exchange


class MindSporeCollectives(Collectives):
    """mint.distributed's default group."""

    @override
    def all_reduce(self, buffer: Tensor) -> None:
        dist.all_reduce(buffer)

    @override
    def exchange(
        self, send: Tensor, send_counts: Sequence[int], receive: Tensor, receive_counts: Sequence[int]
    ) -> Exchange:
        handle = dist.all_to_all_single(receive, send, list(receive_counts), list(send_counts), async_op=True)
        return _MindSporeExchange(handle)

    @override
    def broadcast(self, buffer: Tensor, root: int) -> None:
        dist.broadcast(buffer, root)

    @override
    def barrier(self) -> None:
        dist.barrier()


class _MindSporeExchange(Exchange):
    def __init__(self, handle: "dist.CommHandle") -> None:
        self.handle = handle

    @override
    def progress(self) -> None:
        """Do nothing: the device's communication advances without calls."""

    @override
    def wait(self) -> None:
        self.handle.wait()
