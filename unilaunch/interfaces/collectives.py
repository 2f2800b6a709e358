"""Collectives on a framework's tensors: PyTorch and MindSpore have the same functions under the same names."""

from collections.abc import Sequence
from typing import Any

from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch.overriding import override


class TensorCollectives(Collectives):
    """The default group of a framework: NCCL on cuda, HCCL on npu, and torch's gloo on cpu.

    Args:
        functions: The module with the collective functions: `torch.distributed` or `mindspore.mint.distributed`.
    """

    def __init__(self, functions: Any) -> None:
        self.functions = functions

    @override
    def all_reduce(self, buffer: Any) -> None:
        self.functions.all_reduce(buffer)

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        counts = list(receive_counts), list(send_counts)
        return _Started(self.functions.all_to_all_single(receive, send, *counts, async_op=True))

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        self.functions.broadcast(buffer, root)

    @override
    def barrier(self) -> None:
        self.functions.barrier()


class _Started(Exchange):
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @override
    def progress(self) -> None:
        """Do nothing: a framework's communication advances without calls."""

    @override
    def wait(self) -> None:
        self.handle.wait()
