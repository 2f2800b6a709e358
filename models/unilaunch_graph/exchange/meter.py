"""Measure the communication of an epoch: seconds, and bytes received."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from unilaunch_graph.exchange.trace import Trace


class Watch(Protocol):
    """Measures how long communication takes, where it takes place."""

    def measure(self) -> AbstractContextManager[None]:
        """Measure the block."""

    def read(self) -> float:
        """Return the seconds of the blocks since the last call."""


class HostWatch:
    """Measures by the host's clock: a wait blocks the host."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the block."""
        begin = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begin

    def read(self) -> float:
        """Return the seconds of the blocks since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class Meter:
    """Counts since the last `read`.

    Attributes:
        watch: Measures the communication. A device, where a wait does not block the host, brings one of its own.

    Args:
        trace: Records the spans of communication too, if it is enabled.
    """

    watch: Watch

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace or Trace(0, "", kept=False)
        self.watch = HostWatch()
        self.bytes = 0

    @contextmanager
    def communication(self, name: str = "halo exchange") -> Iterator[None]:
        """Count the time of the block as communication."""
        with self.watch.measure(), self.trace.span(name, "communication"):
            yield

    def received(self, num_bytes: int) -> None:
        """Count halo bytes that arrive."""
        self.bytes += num_bytes

    def read(self) -> tuple[float, int]:
        """Return seconds and bytes since the last call, and begin again."""
        received, self.bytes = self.bytes, 0
        return self.watch.read(), received
