"""The page that a rank's guard can read."""

from hypothesis import given
from hypothesis import strategies as st

from unilaunch.rank.page import Page


@given(st.lists(st.dictionaries(st.sampled_from(["epoch", "loss", "phase"]), st.integers() | st.text(max_size=40))))
def test_the_newest_note_stands_on_the_page(notes: list[dict[str, object]]) -> None:
    """Whole; a new phase begins afresh."""
    page = Page()
    expected: dict[str, object] = {}
    for note in notes:
        page.note(**note)
        expected = note if "phase" in note else expected | note
    assert page.read() == (len(notes), expected)


def test_a_note_that_is_too_long_is_left_out() -> None:
    page = Page()
    page.note(phase="x" * 10_000)
    assert page.read() == (1, {})
