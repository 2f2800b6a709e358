"""How long a program's ranks wait for each other, measured at MindSpore's collective primitives in PyNative mode.

MindSpore hands operations to other threads, so a wait shows only if the queue is emptied before and after a collective.
That costs the overlap of operations, an eighth of a short step: it is done in one of 40 collectives, in stretches.
"""

from itertools import count
from types import ModuleType

from unilaunch.waits import NoteWait, measured

#: Number of collectives in a row that are measured, out of how many.
STRETCH, PERIOD = 40, 1600
_PRIMITIVES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AlltoAll", "Barrier")


def measure_waits(operations: ModuleType, note_wait: NoteWait) -> None:
    """Call *note_wait* for the waits in the collective primitives.

    Args:
        operations: `mindspore.ops.operations.comm_ops`.
        note_wait: Called with the seconds of each wait, or with None for a wait that is not measured.
    """
    numbers = count()
    for name in _PRIMITIVES:
        if kind := getattr(operations, name, None):
            kind.__call__ = measured(
                kind.__call__, note_wait, lambda: next(numbers) % PERIOD < STRETCH, _wait_for_operations
            )


def _wait_for_operations() -> None:
    from mindspore.common.api import _pynative_executor as executor

    executor.sync()
