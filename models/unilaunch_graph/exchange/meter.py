"""What an exchange of rows costs: bytes and waiting, and the timeline of a rank for chrome://tracing and Perfetto."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from unilaunch.folder.files import write_text

#: The timeline's rows of a rank: its work, and its communication.
LANES = {"work": 0, "communication": 1}


class Trace:
    """Spans of time. All ranks count from 1970, so that their files can be opened together.

    Args:
        rank: This rank.
        host: Its host.
        kept: Whether spans are recorded; if not, a span costs a microsecond.
    """

    def __init__(self, rank: int, host: str, *, kept: bool) -> None:
        self.rank, self.host, self.kept = rank, host, kept
        self.spans: list[tuple[str, int, float, float]] = []
        self.origin = time.time() - time.perf_counter()

    @contextmanager
    def span(self, name: str, lane: str = "work") -> Iterator[None]:
        """Record when the block began and ended."""
        begin = time.perf_counter()
        yield
        if self.kept:
            self.spans.append((name, LANES[lane], begin, time.perf_counter()))

    def write(self, path: Path, warn: Callable[[str], None]) -> None:
        """Write the spans in Google's Trace Event Format, whole or not at all; write nothing if none were recorded.

        Args:
            path: The file.
            warn: Called with a line if it cannot be written: a run whose disk is full has a result without it.
        """
        if not self.kept:
            return
        names = [("process_name", 0, f"rank {self.rank} on {self.host}")]
        names += [("thread_name", lane, name) for name, lane in LANES.items()]
        events: list[object] = [
            {"name": kind, "ph": "M", "pid": self.rank, "tid": lane, "args": {"name": name}}
            for kind, lane, name in names
        ]
        events += [
            {"name": name, "ph": "X", "pid": self.rank, "tid": lane,
             "ts": round((self.origin + begin) * 1e6), "dur": round((end - begin) * 1e6, 1)}
            for name, lane, begin, end in self.spans
        ]  # fmt: skip
        try:
            write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
        except OSError as error:
            warn(f"the trace is not kept: {path}: cannot be written: {error.strerror}")


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
