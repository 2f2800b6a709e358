"""The input of `unilaunch launch` is that of rank 0, under every launcher."""

import hashlib
import shlex
import sys
from pathlib import Path

import pytest

from jobs.conftest import find_launcher
from jobs.mpirun import Finished, finish

#: The last line comes late, and the reader is slow at first: a pipe to it has room for a part of a piece only.
SLOW = """
import hashlib, os, time
found, size = hashlib.sha256(), 0
while piece := os.read(0, 10_000 if size < 500_000 else 1 << 20):
    found.update(piece)
    size += len(piece)
    time.sleep(0.01 * (size < 500_000))
print(os.environ["RANK"], size, found.hexdigest())
"""
LINES = "".join(f"{number}\n" for number in range(1, 1_000_001)) + "END\n"


def _run(start: str, source: str, script: str, folder: Path) -> Finished:
    (folder / "script.py").write_text(script)
    options = ["--launcher", "direct"] if start == "direct" else find_launcher(start).options
    line = [sys.executable, "-m", "unilaunch", "launch", "-n", "2", "--console", "all", *options, "script.py"]
    return finish(["sh", "-c", f"{source} | {shlex.join(line)}"], folder, None).check()


@pytest.mark.parametrize("start", ["direct", "4.1", "5.0"])
def test_it_arrives_whole_and_ends(start: str, tmp_path: Path) -> None:
    """Seven megabytes; the other ranks read an empty input. Open MPI 5 itself would pass on no end of it."""
    job = _run(start, "(seq 1000000; sleep 1; echo END)", SLOW, tmp_path)
    whole = f"0 {len(LINES)} {hashlib.sha256(LINES.encode()).hexdigest()}"
    assert sorted(job.stdout.splitlines()) == [whole, f"1 0 {hashlib.sha256().hexdigest()}"]


@pytest.mark.parametrize("start", ["direct", "5.0"])
def test_a_program_need_not_read_it(start: str, tmp_path: Path) -> None:
    """The job ends with its program, though the input has no end."""
    script = "import os, sys\nif os.environ['RANK'] == '0':\n    print(sys.stdin.readline().strip())\n"
    assert _run(start, "yes", script, tmp_path).stdout == "y\n"
