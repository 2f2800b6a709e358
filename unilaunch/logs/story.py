"""Many ranks' lines as one story: in the order of time, and what many say at once said once."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from unilaunch.logs.lines import LEVELS, Line

#: Seconds within which the same line of several ranks is one.
TOGETHER = 2.0


@dataclass(slots=True)
class Told:
    """A line, and who says it.

    Attributes:
        line: The first one's.
        ranks: Everyone's who says the same.
    """

    line: Line
    ranks: list[int] = field(default_factory=list)


def merge(streams: Iterable[Iterable[Line]]) -> Iterator[Line]:
    """Return all lines in the order of time; each stream's own order is kept."""
    return heapq.merge(*streams, key=lambda line: line.time)


def fold(lines: Iterable[Line]) -> Iterator[Told]:
    """Return the lines, those together that several ranks say within `TOGETHER` seconds; needs only their memory."""
    waiting: OrderedDict[tuple[str, str, str, int], Told] = OrderedDict()
    for line in lines:
        while waiting and (first := next(iter(waiting.values()))).line.time < line.time - TOGETHER:
            waiting.popitem(last=False)
            yield first
        copy = 0
        while (told := waiting.get((line.stream, line.level, line.text, copy))) and line.rank in told.ranks:
            copy += 1  # a rank says the same twice: the others' second time belongs to it
        if told:
            told.ranks.append(line.rank)
        else:
            waiting[line.stream, line.level, line.text, copy] = Told(line, [line.rank])
    yield from waiting.values()


def choose(
    ranks: set[int] | None, level: str, since: float, matches: Callable[[str], object] | None
) -> Callable[[Line], bool]:
    """Return the test of which lines are shown."""
    kept = set(LEVELS[LEVELS.index(level) :])

    def test(line: Line) -> bool:
        return (
            (ranks is None or line.rank in ranks)
            and (line.level in kept or line.level not in LEVELS)
            and line.time >= since
            and (matches is None or bool(matches(line.text)))
        )

    return test
