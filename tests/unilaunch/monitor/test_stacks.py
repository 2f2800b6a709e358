"""The ranks' positions, from faulthandler's text."""

from pathlib import Path

import unilaunch
from unilaunch.interfaces.step import Step
from unilaunch.monitor.messages import Stack
from unilaunch.monitor.stacks import describe, group, without_launcher

STACK = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/home/me/train.py", line 40 in step
  File "/home/me/train.py", line 60 in <module>
  File "/work/unilaunch/rank/program.py", line 51 in _run_script
"""
EPOCH_12 = Step("epoch", 12, 200).as_facts()
OTHER = STACK.replace("line 40 in step", "line 12 in load_part").replace("all_reduce", "read")


def test_the_main_thread_is_told_innermost_first() -> None:
    where = describe(STACK, EPOCH_12)
    frames = "all_reduce (distributed_c10d.py:2501) < step (train.py:40) < <module> (train.py:60)"
    assert where == f"{frames}, in epoch 12 of 200"
    assert describe("stopped (SIGSTOP)", {"phase": "train"}) == "stopped (SIGSTOP), in phase 'train'"


def test_the_program_s_line_follows_those_of_libraries() -> None:
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
        program = frame(file, 9, "loss") + frame(file, 20, "<module>")
        assert describe("".join(calls) + program, EPOCH_12) == f"{shown} < ... < loss (train.py:9), in epoch 12 of 200"
        assert describe("".join(calls[:4]) + program, EPOCH_12) == f"{shown} < loss (train.py:9), in epoch 12 of 200"
    assert describe("".join(calls), EPOCH_12) == f"{shown}, in epoch 12 of 200"


def test_ranks_at_one_place_are_together() -> None:
    """The odd ones come last."""
    told = {rank: Stack(OTHER if rank == 3 else STACK, EPOCH_12) for rank in range(8)}
    groups = group(told)
    assert [one["ranks"] for one in groups] == [[0, 1, 2, 4, 5, 6, 7], [3]]
    assert "load_part" in groups[1]["where"]


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
