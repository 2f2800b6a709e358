"""Stragglers are named when they last, and no other rank is named."""

from collections.abc import Sequence

import pytest

from unilaunch.monitor.messages import Progress
from unilaunch.monitor.stragglers import Straggler, Stragglers

HOSTS = {rank: f"node{rank}" for rank in range(4)}


def _named(busy: Sequence[Sequence[float]], steps: Sequence[int] = (20, 20, 20, 20)) -> list[Straggler]:
    """Return who is named when the ranks are so many seconds busy in each step of one window after the other."""
    stragglers, named = Stragglers(), []
    paces = {rank: Progress({}, 0.0) for rank in range(len(busy[0]))}
    for window in range(len(busy) + 1):
        if found := stragglers.look(paces, HOSTS, 10.0 * window):
            named.append(found)
        if window < len(busy):
            paces = {
                rank: Progress({}, 0.0, pace.steps + steps[rank], pace.busy + steps[rank] * busy[window][rank])
                for rank, pace in paces.items()
            }
    return named


def test_a_straggler_is_named_once_after_two_windows() -> None:
    """A fault of 1.3 among few ranks too, with the others' noise of 5 %."""
    (named,) = _named([[0.1, 0.1, 0.16, 0.1]] * 4)
    assert named.line == "straggler: rank 2 on node2, 1.6 x the median for 40 steps"
    assert [one.rank for one in _named([[0.1, 0.13]] * 2)] == [1]
    assert [one.rank for one in _named([[0.1, 0.105, 0.1, 0.13]] * 2)] == [3]


def test_a_straggler_is_named_though_ranks_report_at_different_moments() -> None:
    """As measured: in turn ten steps of one rank and nineteen of the other arrive within a second."""
    stragglers, found = Stragglers(), []
    for time, (slow, fast) in enumerate([(0, 0), (10, 19), (29, 29), (39, 48), (58, 58)]):
        paces = {0: Progress({}, 0.0, fast, fast * 0.08), 1: Progress({}, 0.0, slow, slow * 0.104)}
        found.append(stragglers.look(paces, HOSTS, time))
    assert [one.rank for one in found if one] == [1]


@pytest.mark.parametrize(("busy", "steps"), [
    ([[0.1, 0.1, 0.11, 0.1]] * 4, (20, 20, 20, 20)),  # little more than the others
    ([[0.1, 0.1, 0.2, 0.1], [0.1, 0.1, 0.1, 0.1]] * 2, (20, 20, 20, 20)),  # it does not last
    ([[0.001, 0.001, 0.01, 0.001]] * 4, (20, 20, 20, 20)),  # the steps last half a second for another reason
    ([[0.1, 0.1, 0.2, 0.1]] * 4, (20, 20, 60, 20)),  # their steps are not the same ones
    ([[0.1, 0.1, 0.2, 0.1]] * 4, (2, 2, 2, 2)),  # too few steps
    ([[0.5]] * 4, (20,)),  # alone
], ids=["close", "short", "small", "unlike", "few", "alone"])  # fmt: skip
def test_nobody_is_named_without_reason(busy: Sequence[Sequence[float]], steps: Sequence[int]) -> None:
    assert _named(busy, steps) == []
