"""How long a program's ranks wait for each other, measured at MindSpore's collective primitives in PyNative mode.

MindSpore hands operations to other threads, so a wait shows only if the queue is emptied before and after a collective.
That costs the overlap of operations, an eighth of a short step: it is done in one of 40 collectives, in stretches.
A compiled graph calls no primitive from Python, so in graph mode nothing is measured, which rank 0 says.
"""

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from types import ModuleType
from typing import Any

from unilaunch.errors import say

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

    told = _SaidOnce()

    def checked(native: Callable[..., None]) -> Callable[..., None]:
        @wraps(native)
        def init(self: Any, *args: Any, **options: Any) -> None:
            native(self, *args, **options)
            told.check()

        return init

    for name in _PRIMITIVES:
        if kind := getattr(operations, name, None):
            kind.__call__ = around(kind.__call__)
            kind.__init__ = checked(kind.__init__)


class _SaidOnce:
    """Says at the first collective of a program in graph mode that its waits are not measured."""

    def __init__(self) -> None:
        self._is_said = False

    def check(self) -> None:
        """Look at the mode; rank 0 says it."""
        import mindspore as ms
        from mindspore.communication import get_rank

        if self._is_said or ms.get_context("mode") != ms.GRAPH_MODE:
            return
        self._is_said = True
        if get_rank() == 0:
            say("no straggler will be named: a compiled graph calls no collective from Python, so no wait is measured")
