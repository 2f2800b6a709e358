"""An event loop: it calls a function when a file can be read or written."""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any


class Loop:
    """Waits until a watched file can be read or written, a child exits, or a signal arrives."""

    def __init__(self) -> None:
        self.selector = DefaultSelector()
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.watch(reading, lambda: bool(os.read(reading, 512)))

    def watch(self, source: Any, act: Callable[[], object], event: int = EVENT_READ) -> None:
        """Call *act* when *source* can be read, or written if *event* says so, until *act* returns False."""

        def acted() -> None:
            if act() is False:
                self.selector.unregister(source)

        self.selector.register(source, event, acted)

    def forget(self, sources: Iterable[Any]) -> None:
        """Stop watching *sources*; those that are not watched are ignored."""
        for source in sources:
            with suppress(KeyError):
                self.selector.unregister(source)

    def turn(self, seconds: float) -> None:
        """Wait for the next event, at most *seconds*, and handle it."""
        for key, _ in self.selector.select(seconds):
            key.data()

    def leave(self) -> None:
        """Close the agent's selector and pipes, in a rank that has been forked from it."""
        self.selector.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
