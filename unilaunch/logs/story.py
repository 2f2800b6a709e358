"""Many ranks' lines as one story: in the order of time, and what many say at once said once."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from unilaunch.logs.lines import Line

LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL")
#: Seconds within which the same line of several ranks is one.
TOGETHER = 2.0
#: Lines that wait for others to say the same, at most: what bounds the memory, whatever the ranks write.
MOST = 10_000


@dataclass(slots=True)
class Told:
    """A line, and who says it.

    Attributes:
        line: The first one's.
        ranks: Everyone's who says the same.
    """

    line: Line
    ranks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Saying:
    """One text that waits for others to say it too, perhaps several times: what a rank says twice is two lines.

    Attributes:
        told: How many of them wait no more.
        waiting: The others.
        counts: How often each rank has said it.
    """

    told: int = 0
    waiting: deque[Told] = field(default_factory=deque)
    counts: dict[int, int] = field(default_factory=dict)

    def join(self, line: Line) -> Told | None:
        """Count *line* to the first one that its rank has not said yet; return a new one if there is none."""
        place = max(self.counts.get(line.rank, 0), self.told)
        self.counts[line.rank] = place + 1
        if place - self.told < len(self.waiting):
            self.waiting[place - self.told].ranks.append(line.rank)
            return None
        new = Told(line, [line.rank])
        self.waiting.append(new)
        return new


def merge(streams: Iterable[Iterable[Line]]) -> Iterator[Line]:
    """Return all lines in the order of time; each stream's own order is kept.

    Of lines whose time nobody knows all ranks' first ones come first, then their second ones: they run the same
    program, so that is the best guess.
    """
    return heapq.merge(*streams, key=lambda line: (line.time, line.number))


def fold(lines: Iterable[Line | None]) -> Iterator[Told]:
    """Return the lines, those together that several ranks say within `TOGETHER` seconds; needs only their memory.

    Args:
        lines: In the order of time. None is a pause of who follows a job: no line waits for longer than two.
    """
    waiting: deque[Told] = deque()
    sayings: dict[tuple[str, str, str], _Saying] = {}
    rested = 0  # of those that wait, how many did so at the last pause
    for line in lines:
        if line is None:
            for _ in range(rested):
                yield _tell_first(waiting, sayings)
            rested = len(waiting)
            continue
        while waiting and (len(waiting) >= MOST or waiting[0].line.time < line.time - TOGETHER):
            yield _tell_first(waiting, sayings)
            rested = max(0, rested - 1)
        if new := sayings.setdefault(_text(line), _Saying()).join(line):
            waiting.append(new)
    yield from waiting


def _text(line: Line) -> tuple[str, str, str]:
    return line.stream, line.level, line.text


def _tell_first(waiting: deque[Told], sayings: dict[tuple[str, str, str], _Saying]) -> Told:
    first = waiting.popleft()
    saying = sayings[_text(first.line)]
    saying.waiting.popleft()
    saying.told += 1
    if not saying.waiting:
        del sayings[_text(first.line)]
    return first


def choose(level: str, since: float, matches: Callable[[str], object] | None) -> Callable[[Line], bool]:
    """Return the test of which lines are shown.

    A line whose time nobody knows counts as new enough, and a level that loguru does not have as high enough.
    """
    kept = set(LEVELS[LEVELS.index(level) :])

    def test(line: Line) -> bool:
        return (
            (line.level in kept or line.level not in LEVELS)
            and (line.time >= since or line.number > 0)
            and (matches is None or bool(matches(line.text)))
        )

    return test
