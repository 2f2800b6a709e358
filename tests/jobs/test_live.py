"""The live line: below a job's output, on a terminal."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.mpirun import Launcher

#: A `sitecustomize.py`: epochs of 10 ms, nearly all of it asleep.
SLOW = (
    "import os, time\n"
    "if 'OMPI_COMM_WORLD_RANK' in os.environ:\n"
    "    import unilaunch_graph.optimizer as optimizer\n"
    "    step = optimizer.Adam.step\n"
    "    optimizer.Adam.step = lambda self, gradient: (time.sleep(0.01), step(self, gradient))[1]\n"
)


@pytest.mark.usefixtures("by_numpy")
def test_a_terminal_shows_how_far_the_job_is(
    openmpi5: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the ranks' own lines stay whole above it; at the end it is gone."""
    options = ["--mpirun", str(openmpi5.path), "--allow-run-as-root", "--oversubscribe", "--data-dir", "data"]
    line = [sys.executable, "-m", "unilaunch", "launch", "-n", "2", *options, "--epochs", "300"]
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    terminal, end = pty.openpty()
    with subprocess.Popen(line, cwd=tmp_path, stdin=end, stdout=end, stderr=end) as job:
        os.close(end)
        said = _read(terminal)
    assert job.returncode == 0, said
    states = re.findall(r"\r\x1b\[K(epoch \d+/300, loss \d\.\d{4}, slowest rank [01] on \S+ \(\d\.\d{3} s)", said)
    assert len(states) > 1
    shown = re.sub(r"[^\n]*\r\x1b\[K", "", said.replace("\r\n", "\n"))
    assert re.search(r"^\d\d:\d\d:\d\d\.\d{3} \S+:0 INFO    epoch 300/300: loss", shown, re.MULTILINE)
    summary = "logs               log_output/rank.*/\n"
    assert summary in shown  # of another stream than the log: mpirun may pass that on later
    assert re.fullmatch(r"(\d\d:.*\n)*", shown.partition(summary)[2])


def _read(terminal: int) -> str:
    said = b""
    try:
        while data := os.read(terminal, 65536):
            said += data
    except OSError:  # a terminal whose last writer has gone
        pass
    os.close(terminal)
    return said.decode()
