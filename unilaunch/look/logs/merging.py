"""Merge the log lines of many ranks in the order of time, fold equal lines, and select lines."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from unilaunch.look.logs.lines import LogLine
from unilaunch.record import Record, field

LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL")
#: Seconds within which the same log line of several ranks is shown once.
TOGETHER = 2.0
#: Folded lines that wait for further ranks, at most: this bounds the memory, whatever the ranks write.
MOST = 10_000


class FoldedLine(Record, frozen=False):
    """A log line that one or several ranks wrote.

    Attributes:
        line: That of the first rank.
        ranks: The ranks, in the order of time.
    """

    line: LogLine
    ranks: list[int] = field(default_factory=list)


class _SameText(Record, frozen=False):
    """The folded lines with one text. A line that a rank repeats starts a second one, which others may repeat too.

    Attributes:
        num_shown: Number of folded lines that have been shown.
        waiting: Those that have not, the oldest first.
        counts: How often each rank has written the text.
    """

    num_shown: int = 0
    waiting: deque[FoldedLine] = field(default_factory=deque)
    counts: dict[int, int] = field(default_factory=dict)

    def fold(self, line: LogLine) -> FoldedLine | None:
        """Add *line* to the first folded line that its rank is not in; return a new one if there is none."""
        place = max(self.counts.get(line.rank, 0), self.num_shown)
        self.counts[line.rank] = place + 1
        if place - self.num_shown < len(self.waiting):
            self.waiting[place - self.num_shown].ranks.append(line.rank)
            return None
        new = FoldedLine(line, [line.rank])
        self.waiting.append(new)
        return new


def merge(streams: Iterable[Iterable[LogLine]]) -> Iterator[LogLine]:
    """Return all log lines in the order of time; the order within each stream is kept.

    Lines of unknown time are sorted by their number: the first of each rank, then the second of each. The ranks run the
    same program, so this is the best guess.
    """
    return heapq.merge(*streams, key=lambda line: (line.time, line.number))


def fold(lines: Iterable[LogLine | None]) -> Iterator[FoldedLine]:
    """Return the log lines; the same line of several ranks within `TOGETHER` seconds is one. Memory is bounded.

    Args:
        lines: In the order of time. None is a pause of a followed job: no line waits for longer than two pauses.
    """
    waiting: deque[FoldedLine] = deque()
    by_text: dict[tuple[str, str, str], _SameText] = {}
    rested = 0  # how many waiting lines were already waiting at the last pause
    for line in lines:
        if line is None:
            for _ in range(rested):
                yield _take_first(waiting, by_text)
            rested = len(waiting)
            continue
        while waiting and (len(waiting) >= MOST or waiting[0].line.time < line.time - TOGETHER):
            yield _take_first(waiting, by_text)
            rested = max(0, rested - 1)
        if new := by_text.setdefault(_text(line), _SameText()).fold(line):
            waiting.append(new)
    yield from waiting


def _text(line: LogLine) -> tuple[str, str, str]:
    return line.stream, line.level, line.text


def _take_first(waiting: deque[FoldedLine], by_text: dict[tuple[str, str, str], _SameText]) -> FoldedLine:
    first = waiting.popleft()
    same = by_text[_text(first.line)]
    same.waiting.popleft()
    same.num_shown += 1
    if not same.waiting:
        del by_text[_text(first.line)]
    return first


def choose(level: str, since: float, matches: Callable[[str], object] | None) -> Callable[[LogLine], bool]:
    """Return the test of which log lines are shown.

    A line of unknown time counts as new enough, and a level that loguru does not have as high enough.
    """
    kept = set(LEVELS[LEVELS.index(level) :])

    def test(line: LogLine) -> bool:
        return (
            (line.level in kept or line.level not in LEVELS)
            and (line.time >= since or line.number > 0)
            and (matches is None or bool(matches(line.text)))
        )

    return test
