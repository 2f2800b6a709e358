"""A rank under its agent: what is there before it, its output, and every way to end, which leaves a record."""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from unilaunch.agent.preload import first_import
from unilaunch.monitor.connection import listen
from unilaunch.monitor.inbox import Inbox
from unilaunch.spec.target import Target
from unilaunch.spec.variables import MONITOR

#: A rank ends in time on a busy machine too: its agent stays for FAREWELL to send what it has.
PROGRAM = """
import os, signal, subprocess, sys, time
from unilaunch.agent import rank_process
from unilaunch.agent.under_launcher import supervise
from unilaunch.monitor.messages import Named, Placed
rank_process.FAREWELL = float(sys.argv[1])
def begin(status):
    os.mkdir('rank.0')
    status.send(Named(0, 'here'))
    status.send(Placed('here', 'cpu', 'run', os.path.abspath('rank.0'), 'all', True))
    status.note(phase='train'); status.page.note(epoch=3, epochs=5)
    time.sleep(0.05)
def work(status):
    PROGRAM
    return 0
sys.exit(supervise(ENVIRON, work))
"""
#: What is imported before the ranks are forked, in an interpreter of its own, since an import stays.
PRELOADING = """
import json, os, sys
from unilaunch.agent import preload as module
from unilaunch.agent.preload import preload
from unilaunch.spec.reading import read_task
from unilaunch.spec.run_spec import RunSpec
module.visible_devices = lambda environ: {"cuda": [*environ["CUDA_VISIBLE_DEVICES"]]}  # this host may have no GPU
for options, devices in json.loads(sys.argv[1]):
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": devices}
    found = preload(read_task(RunSpec, {"target": "train.py", **options}, environ), environ)
    print(found is not None, 'torch' in sys.modules)
"""


def _start(
    program: str, folder: Path, environ: dict[str, str] | None = None, farewell: float = 20.0
) -> "subprocess.Popen[str]":
    text = PROGRAM.replace("PROGRAM", program.replace("\n", "\n    ")).replace("ENVIRON", repr(environ or {}))
    own = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # noqa: TID251
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", text, str(farewell)], cwd=folder, env=own, **pipes)


def test_nothing_is_lost_however_much_and_late(tmp_path: Path) -> None:
    """Of Python's print, a library's write to the descriptor, and a child's.

    Ten thousand lines, the first before the folder is known, the last without an end, and then SIGKILL.
    """
    program = (
        "print('early'); begin(status)\nfor i in range(10000): print(f'line {i}')\n"
        "sys.stdout.flush(); os.write(1, b'from below\\n'); subprocess.run(['echo', 'from a child'])\n"
        "print('an error', file=sys.stderr); os.write(2, b'glog\\n'); os.write(1, b'last'); os.kill(os.getpid(), 9)"
    )
    rank = _start(program, tmp_path)
    shown, errors = rank.communicate()
    assert rank.returncode == 137
    kept = (tmp_path / "rank.0" / "stdout").read_text()
    lines = "".join(f"line {i}\n" for i in range(10000))
    assert kept == shown == f"early\n{lines}from below\nfrom a child\nlast"
    assert (tmp_path / "rank.0" / "stderr").read_text() == "an error\nglog\n"
    assert errors.startswith("an error\nglog\n")
    last = (tmp_path / "rank.0" / "times").read_text().splitlines()[-1].split()
    assert abs(float(last[0]) - time.time()) < 60
    assert int(last[1]) == len(kept)


@pytest.mark.parametrize(("end", "code", "expected"), [
    ("os.kill(os.getpid(), 9)", 137, {"signal": "SIGKILL", "cause": "signal"}),
    ("os.abort()", 134, {"signal": "SIGABRT"}),
    ("os._exit(5)", 5, {"signal": None, "cause": "exit"}),
])  # fmt: skip
def test_any_end_leaves_a_record(end: str, code: int, expected: dict[str, object], tmp_path: Path) -> None:
    """Who, at what, and the last lines of the log."""
    rank = _start(f"begin(status)\nprint('a last word', file=sys.stderr)\n{end}", tmp_path)
    rank.communicate()
    failure = json.loads((tmp_path / "rank.0" / "failure.json").read_text())
    expected |= {"rank": 0, "host": "here", "phase": "train", "exit_code": rank.returncode}
    assert (rank.returncode, failure | expected) == (code, failure)
    assert failure["progress"] == {"epoch": 3, "epochs": 5}
    assert "a last word" in failure["last_lines"]


def test_a_rank_that_ends_before_it_has_told_its_number(tmp_path: Path) -> None:
    """The monitor hears nothing of it and orders nothing: the agent says what it saw, and waits for no order."""
    heard = listen([], several=False, host_timeout=15)
    with Inbox(heard) as inbox:
        rank = _start("os._exit(5)", tmp_path, {MONITOR: heard.where})
        deadline = time.monotonic() + 15  # it was 30 s
        while rank.poll() is None:
            assert time.monotonic() < deadline
            inbox.take(0.05)
    assert rank.returncode == 5
    errors = rank.communicate()[1]
    assert "ended with exit code 5" in errors
    assert "rank -1" not in errors


def test_a_rank_that_has_ended_does_not_wait_for_a_monitor_that_never_answers(tmp_path: Path) -> None:
    """Its host may be behind a firewall, or `launch` is stopped: what waits to be sent is no reason to stay."""
    heard = listen([], several=False, host_timeout=15)  # nobody accepts
    rank = _start("begin(status)", tmp_path, {MONITOR: heard.where}, 1.0)
    rank.communicate(timeout=60)
    assert rank.returncode == 0
    heard.listener.close()


def test_a_framework_is_preloaded_on_processors_only(tmp_path: Path) -> None:
    """Where a device is seen every rank imports it by itself; and it is the one that the program imports."""
    (tmp_path / "train.py").write_text("import torch\n")
    none = [({}, "0"), *[({"backend": "mindspore"}, "")] * bool(find_spec("mindspore"))]
    cases = json.dumps([*none, ({"device": "cpu"}, "0"), ({}, "")])  # an import stays: these two are the last
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "UNILAUNCH_"))}  # noqa: TID251
    line = [sys.executable, "-c", PRELOADING, cases]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True, env=own)
    assert done.stdout.splitlines() == ["False False"] * len(none) + ["True True"] * 2


@pytest.mark.parametrize(("text", "neighbour", "expected"), [
    ("import torch\n", "", "torch"),
    ("'''What it does.'''\nfrom __future__ import annotations\nimport os, sys\nimport torch.nn as nn\n", "", "torch"),
    ("import numpy as np\nimport mindspore as ms\nimport torch\n", "", "mindspore"),
    ("RATE = 0.1\nfrom torch.nn.parallel import DistributedDataParallel\n", "", "torch"),
    ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n", "", None),
    ("import settings\nimport torch\n", "", None),
    ("import torch_geometric\nimport torch\n", "", None),
    ("try:\n    import torch\nexcept ImportError:\n    torch = None\n", "", None),
    ("def main():\n    import torch\n", "", None),
    ("print('hello')\nimport torch\n", "", None), ("import torch as\n", "", None), ("", "", None),
    ("import torch\n", "torch.py", None), ("import random\nimport numpy\nimport torch\n", "random.py", None),
    ("import torch\n", "torch/", None), ("import random\nimport numpy\nimport torch\n", "numpy/", None),
])  # fmt: skip
def test_what_a_script_imports_first(text: str, neighbour: str, expected: str | None, tmp_path: Path) -> None:
    """What stands before the import must not be able to change it; nor a neighbour that Python would find before."""
    (tmp_path / "train.py").write_text(text)
    path = tmp_path / neighbour
    path.touch() if path.suffix == ".py" else path.mkdir(exist_ok=True)
    assert first_import(Target("script", str(tmp_path / "train.py")), ("torch", "mindspore")) == expected
