"""How far a rank has come."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.interfaces.step import Step

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
STEPS = st.builds(
    Step,
    st.text(),
    st.integers(1, 10**9),
    st.none() | st.integers(1, 10**9),
    st.dictionaries(st.text(), NUMBERS, max_size=3),
    st.none() | NUMBERS,
)


@given(STEPS)
def test_a_step_arrives_as_it_was_noted(step: Step) -> None:
    assert Step.from_facts(json.loads(json.dumps(step.as_facts()))) == step


@pytest.mark.parametrize("figure", [None, float("nan"), float("inf"), -float("inf")])
def test_a_figure_that_is_no_number_is_left_out(figure: float | None) -> None:
    """So a note is JSON, whatever the model computes."""
    facts = Step("epoch", 3, values={"loss": figure, "norm": 2.0}, busy=figure).as_facts()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts == {"step": "epoch", "number": 3, "total": None, "values": {"norm": 2.0}, "busy": None}


@given(st.dictionaries(st.sampled_from(["step", "number", "total", "values", "busy"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)))  # fmt: skip
def test_whatever_a_rank_notes_can_be_described(facts: dict[str, Any]) -> None:
    """A rank's note comes from another process: it may hold anything."""
    step = Step.from_facts(facts)
    assert step is None or json.dumps(step.as_facts(), allow_nan=False)
