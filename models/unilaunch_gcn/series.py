"""Write the figures of each epoch, one JSON line each, into the rank's folder."""

import time
from contextlib import suppress
from pathlib import Path

_PAUSE = 1.0  # seconds between two writes


class Series:
    """Appends to `epochs.jsonl` now and then: an epoch is to cost microseconds here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self.written = time.monotonic()

    def add(self, epoch: int, loss: float, seconds: float, communication: float, received: int) -> None:
        """Add an epoch.

        Args:
            epoch: Its number, from 1.
            loss: The loss.
            seconds: How long it took.
            communication: Seconds of it in which this rank communicated.
            received: Bytes of halo rows that arrived.
        """
        self.lines.append(
            f'{{"epoch": {epoch}, "time": {time.time():.3f}, "loss": {loss!r}, "seconds": {seconds:.6f}, '
            f'"communication": {communication:.6f}, "bytes": {received}}}\n'
        )
        if time.monotonic() - self.written > _PAUSE:
            self.write()

    def write(self) -> None:
        """Write what has been added; a training can do without it if the disk is full."""
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(self.lines))
        self.lines.clear()
        self.written = time.monotonic()
