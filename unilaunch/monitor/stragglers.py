"""Which rank the others wait for: it works longer in each step than they do, and that lasts."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from unilaunch.monitor.messages import Progress

#: A rank is a straggler if it works so many times as long as the median of the others. Below 1.3, so that a rank
#: that is 1.3 x as slow is named although each measurement has some per cent of error.
FACTOR = 1.2
#: Its excess must also be this share of the step: else the ranks lose next to nothing by it.
_SHARE = 0.05
#: Steps and seconds of a window; a rank is named after two windows in which it was the straggler.
_STEPS, _SECONDS = 10, 1.0
#: Counts of steps of two ranks in a window may differ by this factor: else their steps are not the same ones.
_ALIKE = 1.5


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that holds up the others.

    Attributes:
        rank: Its number.
        host: Where it runs.
        factor: Its busy seconds in a step, divided by the median of the other ranks' ones.
        steps: For how many steps that has lasted.
    """

    rank: int
    host: str
    factor: float
    steps: int

    @property
    def line(self) -> str:
        """Return "straggler: rank 3 on node1, 1.6 x the median for 20 steps"."""
        return f"straggler: rank {self.rank} on {self.host}, {self.factor:.1f} x the median for {self.steps} steps"

    def as_json(self) -> dict[str, Any]:
        """Return what stands in `events.jsonl`, beside the time."""
        return {"straggler": self.rank, "host": self.host, "factor": round(self.factor, 3), "steps": self.steps}


class Stragglers:
    """Compares the ranks' paces, window by window.

    Attributes:
        current: The rank that is the straggler now, if it has been for two windows; None if none is.
    """

    def __init__(self) -> None:
        self.current: Straggler | None = None
        self._began = 0.0
        self._before: dict[int, Progress] = {}
        self._suspect: Straggler | None = None

    def look(self, paces: Mapping[int, Progress], hosts: Mapping[int, str], now: float) -> Straggler | None:
        """Judge the ranks if a window is over; return a straggler when it is first named, None otherwise.

        Args:
            paces: What each working rank has told last, by rank.
            hosts: Where each rank runs.
            now: Seconds of `time.monotonic`.
        """
        before = self._before
        if paces.keys() != before.keys() or any(one.steps < before[rank].steps for rank, one in paces.items()):
            self._begin(paces, now)
            self.current = self._suspect = None
            return None
        steps = {rank: one.steps - before[rank].steps for rank, one in paces.items()}
        if not steps or now - self._began < _SECONDS or min(steps.values()) < _STEPS:
            return None
        busy = {rank: (one.busy - before[rank].busy) / steps[rank] for rank, one in paces.items()}
        seconds = (now - self._began) / max(steps.values())
        self._begin(paces, now)
        alike = max(steps.values()) <= _ALIKE * min(steps.values())
        found = find_slow(busy, least=_SHARE * seconds) if alike else None
        return self._keep(found, hosts, max(steps.values()))

    def _begin(self, paces: Mapping[int, Progress], now: float) -> None:
        self._before, self._began = dict(paces), now

    def _keep(self, found: tuple[int, float] | None, hosts: Mapping[int, str], steps: int) -> Straggler | None:
        before, self._suspect = self._suspect, None
        named, self.current = self.current, None
        if found is None:
            return None
        rank, factor = found
        lasts = before is not None and before.rank == rank
        steps += before.steps if before and lasts else 0
        self._suspect = Straggler(rank, hosts[rank], factor, steps)
        self.current = self._suspect if lasts else None
        return self.current if named is None or named.rank != rank else None


def find_slow(busy: Mapping[int, float], *, least: float = 0.0) -> tuple[int, float] | None:
    """Return the rank that is `FACTOR` times as busy as the median of the others, and its factor; None if none is.

    Args:
        busy: Busy seconds of a step, by rank.
        least: Excess over the median below which nobody is named, in seconds.
    """
    if len(busy) < 2:  # noqa: PLR2004  (a rank and another one)
        return None
    slowest = max(busy, key=busy.__getitem__)
    usual = median(value for rank, value in busy.items() if rank != slowest)
    excess = busy[slowest] - usual
    if usual <= 0 or excess < least or busy[slowest] < FACTOR * usual:
        return None
    return slowest, busy[slowest] / usual
