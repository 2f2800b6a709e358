"""The ranks' positions, from faulthandler's text."""

from pathlib import Path

import unilaunch
from unilaunch.interfaces.step import Step
from unilaunch.monitor.stacks import describe, without_launcher

EPOCH_12 = Step("epoch", 12, 200).as_facts()


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
