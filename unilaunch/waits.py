"""Measure how long a framework's calls wait for other ranks."""

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any

#: Called with the seconds of each wait, or with None for one that is not measured.
NoteWait = Callable[[float | None], None]


def measured(
    native: Callable[..., Any],
    note_wait: NoteWait,
    is_sampled: Callable[[], bool],
    empty_queue: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:
    """Return a method that does what *native* does, and notes how long that took.

    Args:
        native: The framework's method, which waits for other ranks.
        note_wait: Called after each call that succeeds.
        is_sampled: Asked before each call whether it is measured.
        empty_queue: Called before and after a call that is measured; it waits for the operations that are queued.
    """

    @wraps(native)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # a failure in it shows the program's lines
        if not is_sampled():
            result = native(self, *args, **options)
            note_wait(None)
            return result
        empty_queue()
        begin = perf_counter()
        result = native(self, *args, **options)
        empty_queue()
        note_wait(perf_counter() - begin)
        return result

    return call
