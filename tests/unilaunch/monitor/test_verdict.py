"""Which rank failed first."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.errors import InputError, SpecError
from unilaunch.folder.failure import Cause, Failure, describe_exception, describe_exit
from unilaunch.folder.result import JobFailed, LaunchResult
from unilaunch.interfaces.step import Step
from unilaunch.monitor.verdict import describe, judge, ranks, show

KILLED = describe_exit(-9)
RESET = describe_exception(RuntimeError("Connection closed by peer [10.0.0.3]:3"), 1, {"phase": "train"})
BROKEN = describe_exception(ValueError("broken"), 1, {"phase": "train"})
LAUNCHER = Failure(Cause.LOST_LAUNCHER, "unilaunch ended it: its launcher has exited", 1)
MONITOR = Failure(Cause.LOST_PEER, "unilaunch ended it: its control connection to the monitor broke", 1)
OUTSIDE = replace(describe_exit(-15), cause=Cause.ENDED_FROM_OUTSIDE)
MPI = describe_exit(14)


def _of(rank: int, known: Failure) -> Failure:
    where = {"host": f"node{rank}", "device": "cpu", "phase": "train", "last_lines": ("the end",), "log": "log"}
    return replace(known, rank=rank, **where)  # type: ignore[arg-type]


@pytest.mark.parametrize(("told", "first"), [
    ([RESET, KILLED], 1), ([RESET, RESET, BROKEN], 2), ([BROKEN, KILLED], 0), ([RESET, RESET], 0),
    ([OUTSIDE, MONITOR, LAUNCHER], 2), ([OUTSIDE, RESET], 1), ([MPI, KILLED], 1), ([MONITOR, BROKEN], 1),
])  # fmt: skip
def test_the_cause_is_no_consequence(told: list[Failure], first: int) -> None:
    """Though another rank told of its own end before."""
    verdict = judge([*map(_of, range(len(told)), told)])
    assert verdict.first.rank == first
    assert verdict.exit_code == told[first].exit_code
    others = [rank for group in verdict.consequences for rank in group["ranks"]]
    assert sorted([*verdict.alike, *others]) == list(range(len(told)))
    assert all(told[rank] == told[first] for rank in verdict.alike)


def test_what_several_ranks_share_has_no_first() -> None:
    """It is all ranks' only where the number of ranks is known, or rank 0 tells of it for all: a JobFailed says so."""
    alike = [_of(rank, BROKEN) for rank in (2, 0, 1)]
    assert judge(alike, 3).line == "all 3 ranks: ValueError: broken (exit code 1), in phase 'train'"
    assert judge(alike, 4).line == "ranks 0-2 failed: ValueError: broken (exit code 1), in phase 'train'"
    text = show(judge([*alike, _of(3, RESET)], 4), unseen=False)
    assert "unilaunch: ranks 0-2 failed first: ValueError" in text
    assert "unilaunch:   rank 0's log is log on node0\n" in text
    assert "after it rank 3: RuntimeError" in text
    assert text.count("broken") == 2  # with the traceback
    refused = describe_exception(SpecError("job:main: job has no main"), 2, {"phase": "program"})
    told = show(judge([_of(0, refused), _of(1, refused)], 2), unseen=False)
    assert told == "unilaunch: all 2 ranks: job:main: job has no main\n"
    refused = describe_exception(InputError("cora.npz: damaged"), 2, {"phase": "prepare"}, together=True)
    verdict = judge([_of(0, refused)], 3)
    failed = JobFailed(LaunchResult(2, (), verdict.first, Path("out"), None, verdict.line))
    assert str(failed) == "all ranks: cora.npz: damaged; its log is log"


def test_a_job_that_was_ended_from_outside_has_no_culprit() -> None:
    assert judge([_of(0, OUTSIDE), _of(1, OUTSIDE)]).line == "the job was ended from outside, by SIGTERM"
    saved = replace(OUTSIDE, exit_code=75, message="stopped after epoch 3: go on with --resume")
    assert judge([_of(0, saved), _of(1, saved)]).line == "stopped after epoch 3: go on with --resume"


@given(st.sets(st.integers(0, 200), min_size=1))
def test_ranks_are_named_in_spans(numbers: set[int]) -> None:
    """All of them, and only them."""
    text = ranks(list(numbers)).removeprefix("ranks ").removeprefix("rank ")
    spans = [[int(end) for end in span.split("-")] for span in text.split(", ")]
    assert {number for span in spans for number in range(span[0], span[-1] + 1)} == numbers


@pytest.mark.parametrize("error", [
    RuntimeError("unexpected EOF, expected 1000 more bytes. The file might be corrupted."),
    OSError(errno.EHOSTUNREACH, "connection refused by the database"),
])  # fmt: skip
def test_a_damaged_file_is_a_cause(error: Exception) -> None:
    """Of a checkpoint, say; a server that is no rank is no peer either."""
    damaged = describe_exception(error, 1, {"phase": "train"})
    assert judge([_of(0, damaged), _of(1, KILLED)]).first.rank == 0
    assert describe_exception(ConnectionResetError("reset"), 1, {}).cause is Cause.LOST_PEER


@pytest.mark.parametrize(("text", "cause"), [
    ("import argparse; argparse.ArgumentParser().parse_args(['--nosuch'])", Cause.CANNOT_START),
    ("import nosuch", Cause.CANNOT_START), ("from os import nosuch", Cause.CANNOT_START),
    ("x = (", Cause.CANNOT_START), ("import runpy; runpy.run_module('nosuch')", Cause.CANNOT_START),
    ("raise SystemExit(2)", Cause.EXIT), ("import sys; sys.exit(3)", Cause.EXIT), ("1 / 0", Cause.EXCEPTION),
])  # fmt: skip
def test_what_keeps_a_program_from_its_start(text: str, cause: Cause) -> None:
    """Wrong arguments, an import, the syntax: not an exit by the program's own will, and not after a step."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})  # noqa: S102
    assert describe_exception(caught.value, 1, {"phase": "program"}).cause is cause
    after = describe_exception(caught.value, 1, {"phase": "program", **Step("batch", 3).as_facts()}).cause
    assert after is (Cause.EXIT if caught.type is SystemExit else Cause.EXCEPTION)


def test_consequences_that_differ_in_a_port_are_one_line() -> None:
    """A thousand ranks had a thousand lines; of other kinds the first eight are shown."""
    closed = [replace(RESET, message=f"Connection closed by peer [10.0.0.3]:{40000 + rank}") for rank in range(1000)]
    killed = replace(_of(1000, KILLED), progress=Step("epoch", 3, 200).as_facts())
    text = show(judge([killed, *map(_of, range(1000), closed)]), unseen=True)
    assert "rank 1000 on node1000 (cpu) failed first: killed by SIGKILL (exit code 137), in epoch 3 of 200" in text
    assert "| the end" in text
    assert text.count("after it") == 1
    assert "after it ranks 0-999: RuntimeError: Connection closed by peer [10.0.0.3]:40000 (exit code 1)" in text
    kinds = [replace(RESET, message=f"Connection closed by peer {chr(65 + rank)}") for rank in range(20)]
    text = show(judge([killed, *map(_of, range(20), kinds)]), unseen=False)
    assert text.count("after it") == 9
    assert text.endswith("unilaunch:   after it 12 more ranks: report.json names them\n")


RULE = "-" * 52
#: What MindSpore says of an operator that a device lacks, and torch of a process that a script has spawned.
LACKS = f"\n{RULE}\n- Kernel select failed:\n{RULE}\nSelect CPU operator[AlltoAll] fail! Unsupported data type!\n"
SPAWNED = "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n  File ...\n"


@pytest.mark.parametrize(("error", "said"), [
    (RuntimeError(LACKS), "RuntimeError: Select CPU operator[AlltoAll] fail! Unsupported data type! (exit code 1)"),
    (RuntimeError(f"{SPAWNED}ValueError: broken\n"), "RuntimeError: ValueError: broken (exit code 1)"),
    (ValueError("-"), "ValueError: - (exit code 1)"), (AssertionError(), "AssertionError (exit code 1)"),
    (ValueError("y" * 10**6), f"ValueError: {'y' * 1000} ... (exit code 1)"),
])  # fmt: skip
def test_a_message_begins_where_it_says_something(error: Exception, said: str) -> None:
    """One that is a traceback says how it ends."""
    assert describe(describe_exception(error, 1, {})) == said


def test_a_rank_that_has_left_is_named_where_a_peer_was_lost() -> None:
    """The commonest mistake: one rank has fewer batches, and nothing of it has failed."""
    verdict = replace(judge([_of(0, RESET)], 4), left=[1, 2])
    assert "unilaunch:   before it the program of ranks 1-2 had ended (exit code 0)\n" in show(verdict, unseen=False)
    assert verdict.as_json()["left"] == [1, 2]
