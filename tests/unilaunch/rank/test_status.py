"""The page that a rank's agent can read."""

import socket
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.interfaces.step import Step
from unilaunch.rank.status import Pace, Status, StatusPage


@given(st.lists(st.dictionaries(st.sampled_from(["epoch", "loss", "phase"]), st.integers() | st.text(max_size=40))))
def test_the_newest_note_stands_on_the_page(notes: list[dict[str, object]]) -> None:
    """Whole; a new phase begins afresh."""
    page = StatusPage()
    expected: dict[str, object] = {}
    for note in notes:
        page.note(**note)
        expected = note if "phase" in note else expected | note
    assert page.read() == (len(notes), expected)


def test_a_note_that_is_too_long_is_left_out() -> None:
    page = StatusPage()
    page.note(phase="x" * 100_000)
    assert page.read() == (1, {})
    page.note(phase="program", loss=0.5, words="x" * 100_000)
    assert page.read() == (2, {"phase": "program", "loss": 0.5})


def test_a_note_holds_no_nan() -> None:
    """It is refused where it is noted, and what stood there stays: a failure's record is JSON."""
    page = StatusPage()
    page.note(phase="train", loss=0.5)
    with pytest.raises(ValueError, match="JSON"):
        page.note(loss=float("nan"))
    assert page.read() == (1, {"phase": "train", "loss": 0.5})
    assert page.facts == {"phase": "train", "loss": 0.5}


def test_a_step_may_hold_numbers_of_numpy() -> None:
    """A model counts with them; they are noted as Python's."""
    fields: dict[str, Any] = {"number": np.int64(3), "total": np.int64(9), "busy": np.float32(0.5)}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        status = Status(ours, StatusPage())
        status.note_step(Step("batch", **fields, received=cast("int", np.float64(64))))
        assert Step.from_facts(status.page.read()[1]) == Step("batch", 3, 9, busy=0.5)
        assert status.page.read_pace() == Pace(1, 0.5, 64)
        many = Step("epoch", 3, values={f"the accuracy of class {number}": 1 / 3 for number in range(60)})
        status.note_step(many)
        assert Step.from_facts(status.page.read()[1]) == many


def test_the_last_step_is_known_in_the_next_phase() -> None:
    """A short training reports its end only; in that phase it is in no step."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        status = Status(ours, StatusPage())
        status.note(phase="train")
        status.note_step(Step("batch", 9, 9, {"error": 0.5}))
        status.note(phase="end")
        facts = status.page.read()[1]
    assert Step.from_facts(facts) is None
    assert Step.last_from_facts(facts) == Step("batch", 9, 9, {"error": 0.5})
