"""Log lines of many ranks, merged, folded and chosen; the options of `unilaunch logs`."""

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.look.lines import LogLine, merge
from unilaunch.look.logs import TOGETHER, _since, choose, fold

DAY = 86400.0


def _line(rank: int, time: float, text: str, level: str = "INFO") -> LogLine:
    return LogLine(time, rank, "node0", "stdout", level, text)


LINES = st.builds(_line, st.integers(0, 4), st.floats(0, 20), st.sampled_from(["a", "b", "loss 0.1"]))


@given(st.lists(st.lists(LINES, max_size=12), max_size=5))
def test_every_line_is_shown_once_and_in_order(streams: list[list[LogLine]]) -> None:
    """Folded ones are counted; each rank's lines are as many as before."""
    ordered = [sorted(stream, key=lambda line: line.time) for stream in streams]
    merged = list(merge(ordered))
    assert [line.time for line in merged] == sorted(line.time for line in merged)
    folded = list(fold(merged))
    assert Counter((rank, one.line.text) for one in folded for rank in one.ranks) == Counter(
        (line.rank, line.text) for line in merged
    )
    assert [one.line.time for one in folded] == sorted(one.line.time for one in folded)
    assert all(len(one.ranks) == len(set(one.ranks)) for one in folded)


def test_what_many_write_at_once_is_shown_once() -> None:
    """Not what differs by a figure, not what a rank says twice, and not what comes much later."""
    lines = [_line(rank, 1 + rank / 10, "ready") for rank in range(8)]
    lines += [_line(rank, 2, f"loss {rank}") for rank in range(3)]
    lines += [_line(0, 3, "again"), _line(0, 3, "again"), _line(1, 3, "again"), _line(1, 4 + TOGETHER, "again")]
    assert [(one.line.text, len(one.ranks)) for one in fold(lines)] == [
        ("ready", 8), ("loss 0", 1), ("loss 1", 1), ("loss 2", 1), ("again", 2), ("again", 1), ("again", 1)
    ]  # fmt: skip


def test_only_what_is_asked_for_is_shown() -> None:
    lines = [_line(0, 1, "a"), _line(1, 2, "b", "WARNING"), _line(2, 3, "c", "ERROR")]
    tests = (choose("WARNING", 0.0, None), choose("DEBUG", 2.5, None), choose("DEBUG", 0.0, "b".__eq__))
    assert [[line.text for line in lines if test(line)] for test in tests] == [["b", "c"], ["c"], ["b"]]


def test_a_time_of_day_is_the_last_one() -> None:
    """Today's if it has passed, or else yesterday's."""
    now = time.time()
    for text in ("00:00", "23:59:59.9", time.strftime("%H:%M:%S", time.localtime(now))):
        assert now - DAY - 3601 <= _since(text) <= time.time()  # 3600: the clock may have been changed


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("2h ago", 7200), ("1.5d", 1.5 * DAY)])
def test_a_duration_is_counted_from_now(text: str, seconds: float) -> None:
    assert abs(time.time() - seconds - _since(text)) < 5
