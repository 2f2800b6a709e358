"""How long a program's ranks wait for each other, measured where torch waits on the CPU: `Work.wait`, and DDP.

A wait on CPU tensors (gloo) ends when all ranks reach it. NCCL's `Work.wait` returns at once.
"""

import sys
from collections.abc import Callable
from functools import wraps
from time import perf_counter
from types import ModuleType
from typing import Any

#: Called with the seconds of each wait.
NoteWait = Callable[[float], None]


def measure_waits(distributed: ModuleType, note_wait: NoteWait) -> None:
    """Call *note_wait* after every `Work.wait`: each collective of `torch.distributed` that blocks ends with one."""
    if not distributed.is_available():
        return
    work: Any = distributed.Work
    native = work.wait

    @wraps(native)
    def wait(self: Any, *args: Any, **options: Any) -> Any:
        begin = perf_counter()
        try:
            return native(self, *args, **options)
        finally:
            note_wait(perf_counter() - begin)

    work.wait = wait


def measure_ddp(parallel: ModuleType, note_wait: NoteWait) -> None:
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
        result = native(self, output)
        if not torch.compiler.is_compiling():
            tensor = _first_tensor(result, torch.Tensor)
            if tensor is not None and tensor.requires_grad:
                tensor.register_hook(lambda _: queue(arrived))
        return result

    ddp._post_forward = post_forward  # noqa: SLF001


def _first_tensor(output: Any, kind: type[Any]) -> Any:
    """Return the first tensor of a module's output; None if there is none."""
    if isinstance(output, kind):
        return output
    inside = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return next((found for one in inside if (found := _first_tensor(one, kind)) is not None), None)
