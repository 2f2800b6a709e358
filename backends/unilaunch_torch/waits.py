"""How long a program's ranks wait for each other, measured where torch waits on the CPU: `Work.wait`, and DDP.

A wait on CPU tensors (gloo) ends when all ranks reach it. NCCL's `Work.wait` returns at once.

A measured step of DDP takes a tenth of a millisecond longer, so of short steps some in a row are measured, then none.
"""

import sys
from functools import wraps
from time import perf_counter
from types import ModuleType
from typing import Any

from unilaunch.waits import NoteWait, measured

#: Number of DDP's steps in a row that are measured, and the seconds from the first of them to the next such row.
STRETCH, PERIOD = 10, 0.5


class Sampling:
    """Which steps are measured: all of 50 ms and more, and all waits of a program without DDP."""

    def __init__(self) -> None:
        self._steps, self._next = STRETCH, 0.0  # steps of this row and behind it; when the next one may begin

    def step(self) -> bool:
        """Count a step of DDP, and return whether it is measured."""
        now = perf_counter()
        if self._steps >= STRETCH and now >= self._next:
            self._steps, self._next = 0, now + PERIOD
        self._steps += 1
        return self.is_on

    @property
    def is_on(self) -> bool:
        """Whether a wait that begins now is measured."""
        return self._steps <= STRETCH or perf_counter() >= self._next


def measure_waits(distributed: ModuleType, note_wait: NoteWait, sampling: Sampling) -> None:
    """Call *note_wait* after every `Work.wait`: each collective of `torch.distributed` that blocks ends with one."""
    if not distributed.is_available():
        return
    work: Any = distributed.Work
    work.wait = measured(work.wait, note_wait, lambda: sampling.is_on)


def measure_ddp(parallel: ModuleType, note_wait: NoteWait, sampling: Sampling) -> None:
    """Call *note_wait* with the time that DistributedDataParallel waits at the end of each backward pass.

    DDP's own callback, which waits for the gradients of all ranks, is queued when this rank's last gradient is ready.
    Ours is queued when the backward pass begins, so it runs just before; then it queues another one, behind DDP's.
    """
    ddp: Any = parallel.DistributedDataParallel
    native = getattr(ddp, "_post_forward", None)
    if native is None:  # for versions of torch outside of 2.1 to 2.13
        return
    torch: Any = sys.modules["torch"]
    queue = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001

    def arrived() -> None:
        begin = perf_counter()
        queue(lambda: note_wait(perf_counter() - begin))

    @wraps(native)
    def post_forward(self: Any, output: Any) -> Any:
        __tracebackhide__ = True
        result = native(self, output)
        if not torch.compiler.is_compiling():
            tensor = _first_tensor(result, torch.Tensor)
            if tensor is not None and tensor.requires_grad:
                if sampling.step():
                    tensor.register_hook(lambda _: queue(arrived))
                else:
                    note_wait(None)
        return result

    ddp._post_forward = post_forward  # noqa: SLF001


def _first_tensor(output: Any, kind: type[Any]) -> Any:
    """Return the first tensor of a module's output; None if there is none."""
    if isinstance(output, kind):
        return output
    inside = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return next((found for one in inside if (found := _first_tensor(one, kind)) is not None), None)
