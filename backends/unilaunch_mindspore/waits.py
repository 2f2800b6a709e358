"""How long a program's ranks wait for each other, measured at MindSpore's collective primitives in PyNative mode.

MindSpore hands operations to other threads, so a wait shows only if the queue is emptied before and after a collective.
That costs the overlap of operations, an eighth of a short step: it is done in one of 40 collectives, in stretches.
"""

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from types import ModuleType
from typing import Any

#: Number of collectives in a row that are measured, out of how many.
STRETCH, PERIOD = 40, 1600
_PRIMITIVES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AlltoAll", "Barrier")


def measure_waits(operations: ModuleType, note_wait: Callable[[float | None], None]) -> None:
    """Call *note_wait* for the waits in the collective primitives.

    Args:
        operations: `mindspore.ops.operations.comm_ops`.
        note_wait: Called with the seconds of each wait, or with None for a wait that is not measured.
    """
    count = 0

    def around(native: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(native)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            nonlocal count
            __tracebackhide__ = True
            place, count = count % PERIOD, count + 1
            if place >= STRETCH:
                note_wait(None)
                return native(self, *args, **options)
            from mindspore.common.api import _pynative_executor as executor

            executor.sync()
            begin = perf_counter()
            result = native(self, *args, **options)
            executor.sync()
            note_wait(perf_counter() - begin)
            return result

        return call

    for name in _PRIMITIVES:
        if kind := getattr(operations, name, None):
            kind.__call__ = around(kind.__call__)
