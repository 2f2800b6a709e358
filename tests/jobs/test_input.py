"""The input of `unilaunch launch` is that of rank 0, under every launcher."""

import hashlib
import shlex
import sys
from pathlib import Path

from jobs.mpirun import Finished, Launcher, finish

LAUNCH = [sys.executable, "-m", "unilaunch", "launch", "-n", "2", "--console", "all"]
#: The last line comes late, and the reader is slow: everything between the two waits.
SLOW = """
import hashlib, os, sys, time
found, size = hashlib.sha256(), 0
while piece := sys.stdin.buffer.read(1 << 20):
    found.update(piece)
    size += len(piece)
    time.sleep(0.01)
print(os.environ["RANK"], size, found.hexdigest())
"""
LINES = "".join(f"{number}\n" for number in range(1, 1_000_001)) + "END\n"


def _run(launch: list[str], source: str, script: str, folder: Path) -> Finished:
    (folder / "script.py").write_text(script)
    return finish(["sh", "-c", f"{source} | {shlex.join([*launch, 'script.py'])}"], folder, None).check()


def _by(launcher: Launcher) -> list[str]:
    return [*LAUNCH, "--mpirun", str(launcher.path), "--allow-run-as-root", "--oversubscribe"]


def _check_whole(launch: list[str], folder: Path) -> None:
    """Check seven megabytes; the other ranks read an empty input."""
    job = _run(launch, "(seq 1000000; sleep 1; echo END)", SLOW, folder)
    whole = f"0 {len(LINES)} {hashlib.sha256(LINES.encode()).hexdigest()}"
    assert sorted(job.stdout.splitlines()) == [whole, f"1 0 {hashlib.sha256().hexdigest()}"]


def _check_unread(launch: list[str], folder: Path) -> None:
    """Check that the job ends with its program, though the input has no end."""
    script = "import os, sys\nif os.environ['RANK'] == '0':\n    print(sys.stdin.readline().strip())\n"
    assert _run(launch, "yes", script, folder).stdout == "y\n"


def test_it_arrives_whole_and_ends(tmp_path: Path) -> None:
    _check_whole([*LAUNCH, "--launcher", "direct"], tmp_path)


def test_it_arrives_whole_and_ends_under_mpirun(launcher: Launcher, tmp_path: Path) -> None:
    """Open MPI 5 itself would pass on no end of it."""
    _check_whole(_by(launcher), tmp_path)


def test_a_program_need_not_read_it(tmp_path: Path) -> None:
    _check_unread([*LAUNCH, "--launcher", "direct"], tmp_path)


def test_a_program_under_mpirun_need_not_read_it(launcher: Launcher, tmp_path: Path) -> None:
    _check_unread(_by(launcher), tmp_path)
