"""How long a program's ranks wait for each other, measured where torch waits on the CPU: `Work.wait`, and DDP.

A wait on CPU tensors (gloo) ends when all ranks reach it. NCCL's `Work.wait` returns at once, so a program that uses it
is not measured, which rank 0 says.

A measured step of DDP takes a tenth of a millisecond longer, so of short steps some in a row are measured, then none.
"""

import sys
from functools import wraps
from time import perf_counter
from types import ModuleType
from typing import Any

from unilaunch.errors import say
from unilaunch.interfaces.backend import Waits, measured

#: Number of DDP's steps in a row that are measured, and the seconds from the first of them to the next such row.
STRETCH, PERIOD = 10, 0.5
#: Backends of `torch.distributed` whose collectives only queue work on a device.
_AT_ONCE = {"nccl", "hccl", "xccl"}


class Sampling:
    """Which steps are measured: all of 50 ms and more, and all waits of a program without DDP."""

    def __init__(self) -> None:
        self._on_devices: bool | None = None  # not known before the program has connected its ranks
        self._steps, self._next = STRETCH, 0.0  # steps of this row and behind it; when the next one may begin

    def on_devices(self, distributed: ModuleType) -> bool:
        """Whether the ranks meet on devices, where no wait is measured; rank 0 says so, once."""
        if self._on_devices is None and distributed.is_initialized():
            has_device = sys.modules["torch"].accelerator.is_available()
            self._on_devices = returns_at_once(distributed.get_backend_config(), has_device=has_device)
            if self._on_devices and distributed.get_rank() == 0:
                say("slow ranks (stragglers) will not be named: on devices no wait can be measured")
        return bool(self._on_devices)

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


def returns_at_once(backends: str, *, has_device: bool) -> bool:
    """Return whether a program's collectives end before the other ranks reach them.

    Args:
        backends: What `torch.distributed.get_backend_config` gives, such as "cpu:gloo,cuda:nccl".
        has_device: This rank sees a device. Without one a program with both backends uses that of the CPU.
    """
    names = [pair.rpartition(":")[2] for pair in backends.split(",")]
    at_once = [name in _AT_ONCE for name in names]
    return all(at_once) or (has_device and any(at_once))


def measure_waits(distributed: ModuleType, waits: Waits, sampling: Sampling) -> None:
    """Tell *waits* of every `Work.wait`: each collective of `torch.distributed` that blocks ends with one."""
    if not distributed.is_available():
        return
    work: Any = distributed.Work

    def is_sampled() -> bool:
        return not sampling.on_devices(distributed) and sampling.is_on

    work.wait = measured(work.wait, waits, is_sampled)


def measure_ddp(parallel: ModuleType, waits: Waits, sampling: Sampling) -> None:
    """Tell *waits* how long DistributedDataParallel waits at the end of each backward pass.

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
        begin, on_devices = perf_counter(), sampling.on_devices(torch.distributed)
        if not on_devices:
            waits.begin_wait()
        queue(lambda: waits.end_wait(None if on_devices else perf_counter() - begin))

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
                    waits.end_wait(None)
        return result

    ddp._post_forward = post_forward  # noqa: SLF001


def _first_tensor(output: Any, kind: type[Any]) -> Any:
    """Return the first tensor of a module's output; None if there is none."""
    if isinstance(output, kind):
        return output
    inside = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return next((found for one in inside if (found := _first_tensor(one, kind)) is not None), None)
