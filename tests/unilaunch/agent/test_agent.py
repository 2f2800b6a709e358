"""A rank under its agent: its output is kept, also that of its children, and every way to end leaves a record."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unilaunch.monitor.connection import listen
from unilaunch.monitor.inbox import Inbox
from unilaunch.spec.variables import MONITOR

PROLOGUE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from unilaunch.agent import rank_process
from unilaunch.agent.under_launcher import supervise
from unilaunch.monitor.messages import Named, Placed
rank_process.FAREWELL = 20.0  # a rank ends in time on a busy machine too
def begin(status):
    os.mkdir('rank.0')
    status.send(Named(0, 'here'))
    status.send(Placed('here', 'cpu', 'run', os.path.abspath('rank.0'), 'all', True))
    status.note(phase='train'); status.page.note(epoch=3, epochs=5)
    time.sleep(0.05)
def work(status):
    begin(status)
"""


def _run(program: str, folder: Path, prologue: str = PROLOGUE) -> subprocess.CompletedProcess[str]:
    body = "".join(f"    {line}\n" for line in program.strip().splitlines())
    line = [sys.executable, "-c", f"{prologue}{body}    return 0\nsys.exit(supervise({{}}, work))\n"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # noqa: TID251
    return subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_nothing_is_lost_however_much_and_late(tmp_path: Path) -> None:
    """Of Python's print, a library's write to the descriptor, and a child's.

    Ten thousand lines, the first before the folder is known, the last without an end, and then SIGKILL.
    """
    done = _run(
        "for i in range(10000): print(f'line {i}')\n"
        "sys.stdout.flush(); os.write(1, b'from below\\n'); subprocess.run(['echo', 'from a child'])\n"
        "print('an error', file=sys.stderr); os.write(2, b'glog\\n'); os.write(1, b'last'); os.kill(os.getpid(), 9)\n",
        tmp_path,
        PROLOGUE.replace("    begin(status)\n", "    print('early')\n    begin(status)\n"),
    )
    assert done.returncode == 137
    kept = (tmp_path / "rank.0" / "stdout").read_text()
    lines = "".join(f"line {i}\n" for i in range(10000))
    assert kept == done.stdout == f"early\n{lines}from below\nfrom a child\nlast"
    assert (tmp_path / "rank.0" / "stderr").read_text() == "an error\nglog\n"
    assert done.stderr.startswith("an error\nglog\n")
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
    done = _run(f"print('a last word', file=sys.stderr)\n{end}", tmp_path)
    assert done.returncode == code
    failure = json.loads((tmp_path / "rank.0" / "failure.json").read_text())
    assert expected.items() <= failure.items()
    assert (failure["rank"], failure["host"], failure["phase"], failure["exit_code"]) == (0, "here", "train", code)
    assert failure["progress"] == {"epoch": 3, "epochs": 5}
    assert "a last word" in failure["last_lines"]


def test_a_rank_that_ends_before_it_has_told_its_number(tmp_path: Path) -> None:
    """The monitor hears nothing of it and orders nothing: the agent says what it saw, and waits for no order."""
    heard = listen([], several=False, host_timeout=15)
    program = f"{PROLOGUE}    os._exit(5)\nsys.exit(supervise({{'{MONITOR}': '{heard.where}'}}, work))\n"
    line = [sys.executable, "-c", program.replace("    begin(status)\n", "")]
    with Inbox(heard) as inbox:
        running = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 15  # it was 30 s
        while running.poll() is None:
            assert time.monotonic() < deadline
            inbox.take(0.05)
    _, errors = running.communicate()
    assert running.returncode == 5
    assert "ended with exit code 5" in errors
    assert "rank -1" not in errors


def test_a_rank_that_has_ended_does_not_wait_for_a_monitor_that_never_answers(tmp_path: Path) -> None:
    """Its host may be behind a firewall, or `launch` is stopped: what waits to be sent is no reason to stay."""
    heard = listen([], several=False, host_timeout=15)  # nobody accepts
    prologue = PROLOGUE.replace("20.0", "1.0")  # the agent stays so long to send what it has, and no longer
    text = f"{prologue}    return 0\nsys.exit(supervise({{'{MONITOR}': '{heard.where}'}}, work))\n"
    assert subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=False).returncode == 0
    heard.listener.close()
