"""What is typed on the terminal of `unilaunch launch` reaches rank 0."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs.mpirun import Launcher


class _Terminal:
    """A job on a terminal of its own."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.said = descriptor, ""

    def wait_for(self, text: str) -> None:
        """Wait until the job has shown *text*, and forget what came before its end."""
        deadline = time.monotonic() + 60
        while text not in self.said:
            assert select.select([self.descriptor], [], [], deadline - time.monotonic())[0], self.said
            try:
                self.said += os.read(self.descriptor, 65536).decode()
            except OSError:  # the last process of the job has gone
                raise AssertionError(self.said) from None
        self.said = self.said.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())


@contextmanager
def _launch(openmpi: Launcher, folder: Path, script: str) -> Iterator[_Terminal]:
    (folder / "script.py").write_text(script, encoding="utf-8")
    options = ["--mpirun", str(openmpi.path), "--allow-run-as-root", "--oversubscribe"]
    line: Sequence[str] = [sys.executable, "-m", "unilaunch", "launch", "-n", "2", *options, "script.py"]
    terminal, end = pty.openpty()
    with subprocess.Popen(line, cwd=folder, stdin=end, stdout=end, stderr=end, start_new_session=True) as job:
        os.close(end)
        try:
            yield _Terminal(terminal)
            assert job.wait(60) == 0
        finally:
            job.kill()  # the ranks notice
            os.close(terminal)


@pytest.mark.usefixtures("by_numpy")
def test_a_breakpoint_can_be_used(launcher: Launcher, tmp_path: Path) -> None:
    """Python's debugger prompts and follows commands, and the job goes on."""
    script = """
import os
answer = 41
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    breakpoint()
    print("the answer is", answer + 1)
"""
    with _launch(launcher, tmp_path, script) as terminal:
        terminal.wait_for("(Pdb) ")
        terminal.type("p answer * 2\n")
        terminal.wait_for("82")
        terminal.wait_for("(Pdb) ")
        terminal.type("answer = 99\n")
        terminal.wait_for("(Pdb) ")
        terminal.type("continue\n")
        terminal.wait_for("the answer is 100")


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("launcher", ["4.1"], indirect=True)  # 5.0 tells its ranks of no end (open-mpi/ompi#11990)
def test_the_end_of_the_input_is_passed_on(launcher: Launcher, tmp_path: Path) -> None:
    """Rank 0 reads what is typed until Ctrl-D; the others read nothing."""
    script = """
import os, sys
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "read", len(sys.stdin.read().split()), "words")
"""
    with _launch(launcher, tmp_path, script) as terminal:
        terminal.type("two words\n\x04")
        terminal.wait_for("rank 0 read 2 words")
    assert (tmp_path / "log_output/rank.1/stdout").read_text(encoding="utf-8") == "rank 1 read 0 words\n"
