"""Measure how long a framework's calls wait for other ranks."""

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any, Protocol


class Waits(Protocol):
    """Is told of a rank's waits for other ranks. Each method takes a microsecond."""

    def begin_wait(self) -> None:
        """Note that a wait begins: what the rank writes while it waits is no progress."""

    def end_wait(self, seconds: float | None) -> None:
        """Note that a wait has ended.

        Args:
            seconds: How long it took; None if that was not measured.
        """

    def drop_wait(self) -> None:
        """Note that a wait has failed."""


def measured(
    native: Callable[..., Any],
    waits: Waits,
    is_sampled: Callable[[], bool],
    empty_queue: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:
    """Return a method that does what *native* does, and tells *waits* how long that took.

    Args:
        native: The framework's method, which waits for other ranks.
        waits: Told of each call.
        is_sampled: Asked before each call whether it is measured.
        empty_queue: Called before and after a call that is measured; it waits for the operations that are queued.
    """

    @wraps(native)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # a failure in it shows the program's lines
        is_measured = is_sampled()
        if is_measured:
            empty_queue()
        waits.begin_wait()
        begin = perf_counter()
        try:
            result = native(self, *args, **options)
            if is_measured:
                empty_queue()
        except BaseException:
            waits.drop_wait()
            raise
        waits.end_wait(perf_counter() - begin if is_measured else None)
        return result

    return call
