"""How long a device waits for communication, by events on its stream: a wait for NCCL does not block the host.

Never run on a GPU; the tests record the calls.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class EventWatch:
    """Pairs of events on the current stream, around each wait of a step; other waits are not measured.

    A CUDA graph records its events again in each replay, so those that were captured stay, and are read after each.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.seconds = 0.0
        self.is_in_step = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure the waits of the block, and forget the events of the step before."""
        self.pairs.clear()
        self.is_in_step = True
        yield
        self.is_in_step = False

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the block if it is part of a step; an evaluation is not."""
        if not self.is_in_step:
            yield
            return
        captured = {"external": True} if torch.cuda.is_current_stream_capturing() else {}  # else a graph times nothing
        begin, end = (torch.cuda.Event(enable_timing=True, **captured) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        yield
        end.record()
        self.pairs.append((begin, end))

    def finish_step(self) -> None:
        """Measure the step; the device must have finished it, and must not have begun another."""
        self.seconds = sum(begin.elapsed_time(end) for begin, end in self.pairs) / 1000

    def read(self) -> float:
        """Return the seconds of the newest step that was measured."""
        return self.seconds
