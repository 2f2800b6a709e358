"""One line below a job's output that says how far it has come; on a terminal only."""

import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from unilaunch.monitor.rank_seen import RankSeen

_PAUSE = 0.5  # seconds between two states of the line
_CLEAR = "\r\x1b[K"


class Live:
    """The line, and what passes above it."""

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown
        self.text = ""
        self.drawn = 0.0
        self.open_line = False
        self.lock = threading.Lock()

    def follow(self, ranks: Mapping[int, RankSeen]) -> None:
        """Draw the line anew, if it is time."""
        if self.shown and time.monotonic() - self.drawn > _PAUSE and (text := describe(ranks)):
            with self.lock:
                self.drawn, self.text = time.monotonic(), text[: shutil.get_terminal_size().columns - 1]
                if not self.open_line:  # what a rank has begun to write stays whole
                    _write(2, _CLEAR + self.text)

    def say(self, line: str) -> None:
        """Write a line of the launcher's own, above the line."""
        with self.lock:
            _write(2, (_CLEAR if self.text and not self.open_line else "") + f"unilaunch: {line}\n")

    @contextmanager
    def passing(self, *outputs: IO[bytes] | None) -> Iterator[None]:
        """Pass on what mpirun writes while the block runs, above the line."""
        targets = zip((1, 2), outputs, strict=True)
        threads = [
            threading.Thread(target=self._pass_on, args=(output, target), daemon=True)
            for target, output in targets
            if output
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread in threads:
                thread.join(_PAUSE)  # a process that outlives mpirun may still hold its output
            if self.shown and self.text:
                _write(2, _CLEAR)

    def _pass_on(self, output: IO[bytes], target: int) -> None:
        while data := os.read(output.fileno(), 1 << 16):
            with self.lock:
                if self.text and not self.open_line:
                    _write(2, _CLEAR)
                _write(target, data)
                self.open_line = not data.endswith(b"\n")
                if self.text and not self.open_line:
                    _write(2, self.text)


def _write(target: int, data: str | bytes) -> None:
    """Write to the console. Where nobody reads it any more (a closed terminal) the job goes on."""
    left = data.encode() if isinstance(data, str) else data
    with suppress(OSError):
        while left:
            left = left[os.write(target, left) :]


def describe(ranks: Mapping[int, RankSeen]) -> str:
    """Return how far the ranks have come: "epoch 12/200, loss 0.4312, slowest rank 3 on node1 (...)"; "" if unknown."""
    told: dict[int, Any] = {rank: seen.progress for rank, seen in ranks.items() if "epoch" in seen.progress}
    if not told:
        return ""
    behind = min(told.values(), key=lambda progress: progress["epoch"])
    words = [f"epoch {behind['epoch']}" + (f"/{behind['epochs']}" if "epochs" in behind else "")]
    if isinstance(behind.get("loss"), float):
        words.append(f"loss {behind['loss']:.4f}")
    if len(told) > 1 and all("compute" in progress for progress in told.values()):
        slowest = max(told, key=lambda rank: told[rank]["compute"])
        words.append(f"slowest rank {slowest} on {ranks[slowest].host} ({told[slowest]['compute']:.3f} s of computing)")
    return ", ".join(words)
