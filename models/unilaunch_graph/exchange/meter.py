"""What an epoch costs: seconds of communication, and bytes that arrived."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from unilaunch_graph.exchange.trace import Trace


class Meter:
    """Counts since the last `read`.

    Args:
        trace: Where the communication is kept too, if it is to be.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace or Trace(0, "", kept=False)
        self.seconds = 0.0
        self.bytes = 0

    @contextmanager
    def communication(self, name: str = "halo exchange") -> Iterator[None]:
        """Count the time of the block as communication."""
        begin = time.perf_counter()
        with self.trace.span(name, "communication"):
            yield
        self.seconds += time.perf_counter() - begin

    def received(self, num_bytes: int) -> None:
        """Count halo bytes that arrive."""
        self.bytes += num_bytes

    def read(self) -> tuple[float, int]:
        """Return seconds and bytes since the last call, and begin again."""
        counted = self.seconds, self.bytes
        self.seconds, self.bytes = 0.0, 0
        return counted
