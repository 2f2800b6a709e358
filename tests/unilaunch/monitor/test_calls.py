"""The collectives that ranks have called, as the monitor compares them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from unilaunch.interfaces.calls import END, KEPT, SIZE, CallLog, Operation, read
from unilaunch.monitor.messages import Progress
from unilaunch.monitor.monitor import find_mixed_calls
from unilaunch_graph.purpose import Purpose


def _after(calls: Sequence[tuple[Operation, int]]) -> Progress:
    log, memory = CallLog(), memoryview(bytearray(SIZE))
    log.publish(memory)
    for operation, purpose in calls:
        log.purpose = purpose
        log.begin(operation)
    number, kinds, names = read(memory)
    assert number == log.number
    return Progress({}, 0.0, calls=number, kinds=kinds.hex(), purposes=names)


Call = tuple[Operation, Purpose]
CALLS = st.tuples(st.sampled_from(Operation), st.sampled_from(Purpose))


@given(st.lists(CALLS, max_size=3 * KEPT), st.data())
def test_ranks_that_make_the_same_calls_are_never_blamed(calls: list[Call], data: st.DataObject) -> None:
    """However far each of them has come when its agent looks."""
    seen = {rank: _after(calls[: data.draw(st.integers(0, len(calls)))]) for rank in range(3)}
    assert find_mixed_calls(seen) == ""


@given(st.lists(CALLS, max_size=2 * KEPT), CALLS, CALLS, st.lists(CALLS, max_size=3))
def test_ranks_that_wait_in_different_calls_are_named(
    before: list[Call], one: Call, other: Call, after: list[Call]
) -> None:
    """Also where one of them has gone on, as the root of a broadcast does."""
    seen = {0: _after([*before, one]), 1: _after([*before, other, *after]), 2: _after([*before, one])}
    line = find_mixed_calls(seen)
    assert bool(line) == (one != other)
    if line:
        assert line.count(f"(collective {len(before) + 1})") == 2
        assert "ranks 0, 2 are at" in line


def test_a_call_is_named_after_what_the_user_has_called() -> None:
    fetch, other = _after([(Operation.EXCHANGE, Purpose.FETCH)]), _after([(Operation.ALL_REDUCE, Purpose.SUM_RANKS)])
    line = find_mixed_calls({0: fetch, 1: other})
    assert "rank 0 is at fetch (collective 1) and rank 1 is at sum_ranks (collective 1)" in line
    assert "rank 2 is at the end of its program" in find_mixed_calls({0: fetch, 2: _after([(Operation.AGREE, END)])})
