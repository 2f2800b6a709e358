"""How long a program's ranks wait for each other, measured at MindSpore's collective primitives in PyNative mode.

MindSpore hands operations to other threads, so a wait shows only if the queue is emptied before and after a collective.
That costs the overlap of operations, an eighth of a short step: it is done in one of 40 collectives, in stretches.
A compiled graph calls no primitive from Python, so in graph mode nothing is measured, which rank 0 says.
"""

from collections.abc import Callable
from functools import wraps
from itertools import count
from types import ModuleType
from typing import Any

from unilaunch.errors import say
from unilaunch.interfaces.backend import Waits, measured

#: Number of collectives in a row that are measured, out of how many.
STRETCH, PERIOD = 40, 1600
_PRIMITIVES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AlltoAll", "Barrier")


def measure_waits(operations: ModuleType, waits: Waits) -> None:
    """Tell *waits* of the waits in the collective primitives.

    Args:
        operations: `mindspore.ops.operations.comm_ops`.
        waits: Told of each wait.
    """
    numbers, mode = count(), _Mode()
    for name in _PRIMITIVES:
        if kind := getattr(operations, name, None):
            kind.__init__ = _checked(kind.__init__, mode)
            kind.__call__ = measured(
                kind.__call__, waits, lambda: next(numbers) % PERIOD < STRETCH, _wait_for_operations
            )


def _wait_for_operations() -> None:
    from mindspore.common.api import _pynative_executor as executor

    executor.sync()


def _checked(native: Callable[..., None], mode: "_Mode") -> Callable[..., None]:
    @wraps(native)
    def init(self: Any, *args: Any, **options: Any) -> None:
        native(self, *args, **options)
        mode.check()

    return init


class _Mode:
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
            say("slow ranks (stragglers) will not be named: in graph mode no wait can be measured")
