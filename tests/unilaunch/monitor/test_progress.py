"""What ranks are at, as the monitor compares it: their calls, their pace (stragglers), and their stacks."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unilaunch
from unilaunch.interfaces.calls import END, KEPT, SIZE, CallLog, Operation, read
from unilaunch.interfaces.step import Step
from unilaunch.monitor.messages import Progress
from unilaunch.monitor.monitor import find_mixed_calls
from unilaunch.monitor.stacks import describe, without_launcher
from unilaunch.monitor.stragglers import Straggler, Stragglers
from unilaunch_graph.purpose import Purpose

Call = tuple[Operation, Purpose]
CALLS = st.tuples(st.sampled_from(Operation), st.sampled_from(Purpose))
HOSTS = {rank: f"node{rank}" for rank in range(4)}
EPOCH_12 = Step("epoch", 12, 200).as_facts()


def _after(calls: Sequence[tuple[Operation, int]]) -> Progress:
    log, memory = CallLog(), memoryview(bytearray(SIZE))
    log.publish(memory)
    for operation, purpose in calls:
        log.purpose = purpose
        log.begin(operation)
    number, kinds, names = read(memory)
    assert number == log.number
    return Progress({}, 0.0, calls=number, kinds=kinds.hex(), purposes=names)


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


def test_the_program_s_lines_follow_those_of_libraries() -> None:
    """Those of unilaunch, of installed packages and of Python; whatever the program's own folder is called."""
    frame = '  File "{}", line {} in {}\n'.format
    root = Path(unilaunch.__file__).parents[1]
    libraries = (
        root / "unilaunch/interfaces/linear.py", root / "models/unilaunch_graph/mindspore/ranks.py",
        root / "backends/unilaunch_mindspore/linear.py", "/venv/lib/python3.11/site-packages/mindspore/nn/cell.py",
        "/usr/lib/python3.11/threading.py", "/usr/lib/python3/dist-packages/numpy/core.py",
    )  # fmt: skip
    calls = [frame(file, number, f"f{number}") for number, file in enumerate(libraries)]
    shown = "f0 (linear.py:0) < f1 (ranks.py:1) < f2 (linear.py:2) < f3 (cell.py:3)"
    for file in ("/home/me/unilaunch/train.py", f"{root}/examples/train.py", "train.py"):
        program = frame(file, 9, "loss") + frame(file, 15, "step") + frame(file, 20, "<module>")
        lines = "loss (train.py:9) < ... < <module> (train.py:20), in epoch 12 of 200"
        assert describe("".join(calls) + program, EPOCH_12) == f"{shown} < ... < {lines}"
        assert describe("".join(calls[:4]) + program, EPOCH_12) == f"{shown} < {lines}"
    assert describe("".join(calls), EPOCH_12) == f"{shown}, in epoch 12 of 200"


def test_the_frames_that_run_the_program_are_left_out() -> None:
    """The outermost ones of each thread; a program that has called unilaunch shows that, and ours shows all."""
    frame = '  File "{}", line 1 in {}\n'.format
    ours = frame("/venv/unilaunch/rank/run.py", "run") + frame("<frozen runpy>", "_run_code")
    program = frame("/venv/unilaunch/rank/current.py", "init") + frame("train.py", "<module>")
    other = "Thread 0x01 (most recent call first):\n" + frame("threading.py", "wait") + "\n"
    crash = "Fatal Python error: Aborted\n\n" + other + "Current thread 0x02 (most recent call first):\n"
    end = "\nExtension modules: a, b (total: 2)\n"
    assert without_launcher(crash + program + ours + end) == crash + program + end
    assert without_launcher(crash + ours) == crash + ours
    assert without_launcher("") == ""
