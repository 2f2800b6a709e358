"""Which rank failed first."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.watch.verdict import judge, ranks, show

KILLED = {"error": "Killed", "message": "killed by SIGKILL", "signal": "SIGKILL", "exit_code": 137}
RESET = {"error": "RuntimeError", "message": "Connection closed by peer [10.0.0.3]:3", "exit_code": 1}
BROKEN = {"error": "ValueError", "message": "broken", "exit_code": 1}
LAUNCHER = {"error": "Ended", "message": "unilaunch ended it: its launcher has gone", "exit_code": 1}
LINE = {"error": "Ended", "message": "unilaunch ended it: the line to who watches the job broke", "exit_code": 1}
OUTSIDE = {"error": "Killed", "message": "killed by SIGTERM", "signal": "SIGTERM", "exit_code": 143, "outside": True}
MPI = {"error": "Exit", "message": "ended with exit code 14 and no exception", "exit_code": 14}


def _failure(rank: int, known: dict[str, Any]) -> dict[str, Any]:
    common = {"rank": rank, "host": f"node{rank}", "device": "cpu", "phase": "train", "progress": {}, "signal": None}
    return common | {"traceback": [], "last_lines": ["the end"], "evidence": [], "log": "log"} | known


@pytest.mark.parametrize(("told", "first"), [
    ([RESET, KILLED], 1),
    ([RESET, RESET, BROKEN], 2),
    ([BROKEN, KILLED], 0),
    ([RESET, RESET], 0),
    ([OUTSIDE, LINE, LAUNCHER], 2),
    ([OUTSIDE, RESET], 1),
    ([MPI, KILLED], 1),
    ([LINE, BROKEN], 1),
])  # fmt: skip
def test_the_cause_is_no_consequence(told: list[dict[str, Any]], first: int) -> None:
    """Though another rank told of its own end before."""
    verdict = judge([_failure(rank, known) for rank, known in enumerate(told)])
    assert verdict.first["rank"] == first
    assert verdict.exit_code == told[first]["exit_code"]
    assert sorted(rank for group in verdict.consequences for rank in group["ranks"]) == sorted(
        set(range(len(told))) - {first}
    )


def test_the_same_consequence_of_many_is_one_line() -> None:
    failures = [_failure(2, KILLED), *(_failure(rank, RESET) for rank in (0, 1, 3, 7))]
    text = show(judge(failures), traceback=True)
    assert "rank 2 on node2 (cpu) failed first: killed by SIGKILL (exit code 137), in phase 'train'" in text
    assert "after it ranks 0-1, 3, 7: RuntimeError: Connection closed by peer" in text
    assert "| the end" in text


def test_a_job_that_was_ended_from_outside_has_no_culprit() -> None:
    assert judge([_failure(0, OUTSIDE), _failure(1, OUTSIDE)]).line == "the job was ended from outside, by SIGTERM"


@given(st.sets(st.integers(0, 200), min_size=1))
def test_ranks_are_named_in_spans(numbers: set[int]) -> None:
    """All of them, and only them."""
    text = ranks(list(numbers)).removeprefix("ranks ").removeprefix("rank ")
    spans = [[int(end) for end in span.split("-")] for span in text.split(", ")]
    assert {number for span in spans for number in range(span[0], span[-1] + 1)} == numbers
