"""Find stragglers: ranks that compute longer than the others in each step, over some time."""

from collections.abc import Mapping
from typing import Any

from unilaunch.monitor.messages import Progress
from unilaunch.record import Record

#: A rank is a straggler if it computes this many times as long as the median of the others. The factor is below 1.3, so
#: that a rank that takes 1.3 times as long is named although each measurement has an error of some per cent.
FACTOR = 1.2
#: The extra time must also be at least this share of the step: otherwise it costs the ranks almost nothing.
_SHARE = 0.05
#: Steps and seconds of a window; a rank is named after two windows in which it was the straggler.
_STEPS, _SECONDS = 10, 1.0
#: The step counts of two ranks in a window may differ by this factor. Ranks report at different moments, so where they
#: differ more the window goes on; ranks that still do after so many steps do not step together: nobody is named.
_ALIKE, _MOST_STEPS = 1.5, 40


class Straggler(Record):
    """A rank that delays the others.

    Attributes:
        rank: Its number.
        host: Where it runs.
        factor: Its busy seconds in a step, divided by the median of the other ranks' busy seconds.
        steps: The number of steps for which this has lasted.
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
        """Return the fields for `events.jsonl`, without the time."""
        return {"straggler": self.rank, "host": self.host, "factor": round(self.factor, 3), "steps": self.steps}


class Stragglers:
    """Compares the ranks' paces, window by window.

    Attributes:
        current: The straggler, if the same rank was it in two windows; None if there is none.
    """

    def __init__(self) -> None:
        self.current: Straggler | None = None
        self._began = 0.0
        self._before: dict[int, Progress] = {}
        self._suspect: Straggler | None = None

    def look(self, paces: Mapping[int, Progress], hosts: Mapping[int, str], now: float) -> Straggler | None:
        """Compare the ranks if a window is over; return a straggler when it is first found, None otherwise."""
        before = self._before
        if paces.keys() != before.keys() or any(one.steps < before[rank].steps for rank, one in paces.items()):
            self._begin(paces, now)
            self.current = self._suspect = None
            return None
        steps = {rank: one.steps - before[rank].steps for rank, one in paces.items()}
        if not steps or now - self._began < _SECONDS or min(steps.values()) < _STEPS:
            return None
        is_alike = max(steps.values()) <= _ALIKE * min(steps.values())
        if not is_alike and min(steps.values()) < _MOST_STEPS:
            return None
        busy = {rank: (one.busy - before[rank].busy) / steps[rank] for rank, one in paces.items()}
        seconds = (now - self._began) / max(steps.values())
        self._begin(paces, now)
        found = find_slow(busy, least=_SHARE * seconds) if is_alike else None
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
        least: Smallest difference from the median for which a rank is named, in seconds.
    """
    if len(busy) < 2:  # noqa: PLR2004  (a rank and another one)
        return None
    slowest = max(busy, key=busy.__getitem__)
    others = sorted(value for rank, value in busy.items() if rank != slowest)
    usual = (others[len(others) // 2] + others[~(len(others) // 2)]) / 2  # the median; importing statistics takes 5 ms
    excess = busy[slowest] - usual
    if usual <= 0 or excess < least or busy[slowest] < FACTOR * usual:
        return None
    return slowest, busy[slowest] / usual
