"""A rank, as far as it shows without a launcher: what ranks agree on, what an agent reads of one, and how it ends."""

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from threaded_ranks import RankInTurn, in_turns
from unilaunch.errors import RefusedTogetherError, SpecError
from unilaunch.folder.failure import Cause, describe_exception
from unilaunch.interfaces.backend import Placement
from unilaunch.interfaces.step import Step
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.rank import work
from unilaunch.rank.identity import compare_programs, tell_facts
from unilaunch.rank.program import check_value, exit_code, keep_value
from unilaunch.rank.status import Pace, Status, StatusPage
from unilaunch.spec.reading import read_task
from unilaunch.spec.run_spec import RunSpec

Shown = pytest.CaptureFixture[str]


@pytest.mark.parametrize(("options", "words"), [
    ({"epochs": "3"}, "rank 0 has epochs=200 and rank 1 epochs=3"),
    ({"backend": "mindspore"}, "backend='torch' and rank 1 backend='mindspore'"),
])  # fmt: skip
def test_ranks_that_were_told_different_things_are_refused(options: dict[str, str], words: str) -> None:
    """Both values are named, on every rank alike, before anything waits for the other."""

    def tell(rank: int, peers: RankInTurn) -> str:
        task = read_task(RunSpec, {"backend": "torch"} | (options if rank else {}), {})
        with pytest.raises(RefusedTogetherError, match=words) as refusal:
            tell_facts(task, peers, {}, LauncherInfo("none", rank, 2, rank, 2, "", {}), "")
        return f"{refusal.value.exit_code}: {refusal.value}"

    first, second = in_turns(2, tell)
    assert first == second
    assert first.startswith("2: ")


def test_another_python_is_said_and_another_unilaunch_is_refused() -> None:
    first, second = ["a", "1.0", "3.11", "/venv/python"], ["b", "1.0", "3.12", "/usr/bin/python"]
    assert compare_programs([first, ["b", "1.0", "3.11", "/other/python"]]) == ""
    assert "rank 1 on b has unilaunch 1.0 and Python 3.12" in compare_programs([first, second, first])
    with pytest.raises(RefusedTogetherError, match="rank 2 on b has unilaunch 2"):
        compare_programs([first, first, ["b", "2.0", "3.11", "/venv/python"]])


@given(st.lists(st.dictionaries(st.sampled_from(["epoch", "loss", "phase"]), st.integers() | st.text(max_size=40))))
def test_the_newest_note_stands_on_the_page(notes: list[dict[str, object]]) -> None:
    """Whole; a new phase begins afresh."""
    page, expected = StatusPage(), dict[str, object]()
    for note in notes:
        page.note(**note)
        expected = note if "phase" in note else expected | note
    assert page.read() == (len(notes), expected)


def test_a_note_is_json_that_has_room() -> None:
    """What is too long is left out; NaN is refused where it is noted, and what stood there stays."""
    page = StatusPage()
    page.note(phase="program", loss=0.5, words="x" * 100_000)
    with pytest.raises(ValueError, match="JSON"):
        page.note(loss=float("nan"))
    assert page.read() == (1, {"phase": "program", "loss": 0.5})
    assert page.facts == {"phase": "program", "loss": 0.5}


def test_a_step_may_hold_numbers_of_numpy_and_is_known_in_the_next_phase() -> None:
    """A model counts with them; a short training reports its end only, and is in no step then."""
    fields: dict[str, Any] = {"number": np.int64(3), "total": np.int64(9), "busy": np.float32(0.5)}
    many = Step("epoch", 3, values={f"the accuracy of class {number}": 1 / 3 for number in range(60)})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        status = Status(ours, StatusPage())
        status.note(phase="train")
        status.note_step(Step("batch", **fields, received=cast("int", np.float64(64))))
        assert Step.from_facts(status.page.read()[1]) == Step("batch", 3, 9, busy=0.5)
        assert status.page.read_pace() == Pace(1, 0.5, 64)
        status.note_step(many)
        assert Step.from_facts(status.page.read()[1]) == many
        status.note(phase="end")
        assert Step.from_facts(status.page.read()[1]) is None
        assert Step.last_from_facts(status.page.read()[1]) == many


def test_a_value_that_is_too_large_is_refused_in_one_line() -> None:
    with pytest.raises(SpecError, match=r"make returned 70 MB: at most 67 MB come back"):
        check_value("x" * 70_000_000, "make")


@pytest.mark.parametrize("value", [{1, 2}, object(), {(1, 2): 3}, {1: 2, "1": 3}, [(loop := []), loop.append(loop)]])  # type: ignore[var-annotated, func-returns-value]
def test_what_cannot_be_sent_is_refused_in_one_line(value: object, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"make returned a value that cannot be sent \(.*\): expected numbers"):
        keep_value(value, "make", tmp_path)


@pytest.mark.parametrize("code", [None, 0, True, -1, 256, 1 << 70, -(1 << 63) - 1, "words", 3.5])
def test_a_program_has_the_exit_code_that_python_gives_it(code: object) -> None:
    """Also where it is no number of 8 bits: the sum of many errors is no success."""
    line = [sys.executable, "-S", "-c", f"raise SystemExit({code!r})"]
    assert exit_code(SystemExit(code)) == subprocess.run(line, check=False, capture_output=True).returncode


@pytest.mark.parametrize(("device", "error", "words"), [
    ("cuda", torch.OutOfMemoryError("CUDA out of memory. Tried 9 GiB. GPU 0 has 5. It"), "GPU 0 has 5: take more GPU"),
    ("cpu", MemoryError("Unable to allocate 7.28 TiB"), "Unable to allocate 7.28 TiB: take more ranks on more hosts"),
])  # fmt: skip
def test_a_model_without_memory_is_one_line(device: str, error: Exception, words: str, capsys: Shown) -> None:
    """Of a GPU as of the host: torch's error is no MemoryError; the rank, what could not be had, and what to do."""
    rank = MagicMock(world=MagicMock(rank=0, host="a"), placement=Placement(device, 0, 1))
    assert work._explain(error, rank) == (1, "")
    assert re.search(f"^unilaunch: rank 0 on a: out of memory: .*{words}.*\n$", capsys.readouterr().err)
    assert describe_exception(error, 1, {}).cause is Cause.OUT_OF_MEMORY
