"""What an epoch costs: seconds of communication, and bytes that arrived."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Meter:
    """Counts since the last `read`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.bytes = 0

    @contextmanager
    def communication(self) -> Iterator[None]:
        """Count the time of the block as communication."""
        begin = time.perf_counter()
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
