"""The page that a rank's agent can read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.rank.status_page import StatusPage


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
    page.note(phase="x" * 10_000)
    assert page.read() == (1, {})


def test_a_note_holds_no_nan() -> None:
    """It is refused where it is noted, and what stood there stays: a failure's record is JSON."""
    page = StatusPage()
    page.note(phase="train", loss=0.5)
    with pytest.raises(ValueError, match="JSON"):
        page.note(loss=float("nan"))
    assert page.read() == (1, {"phase": "train", "loss": 0.5})
    assert page.facts == {"phase": "train", "loss": 0.5}
