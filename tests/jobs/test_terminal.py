"""On the terminal of `unilaunch launch`: what is typed reaches rank 0, and what rank 0 draws appears as it draws it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

import pytest

from jobs.mpirun import Launcher


class _Terminal:
    """A job on a terminal of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.descriptor, end = pty.openpty()
        self.resize(33, 99)
        line = [sys.executable, "-m", "unilaunch", "launch", "-n", "2", *words]
        self.job = Popen(line, cwd=folder, stdin=end, stdout=end, stderr=end, start_new_session=True)
        os.close(end)
        self.said = ""

    def wait_for(self, text: str) -> None:
        """Wait until the job has shown *text*, and forget what came before its end."""
        deadline = time.monotonic() + 60
        while text not in self.said:
            assert select.select([self.descriptor], [], [], deadline - time.monotonic())[0], self.said
            self.said += self.read()
        self.said = self.said.partition(text)[2]

    def read(self) -> str:
        """Return a piece of what is shown."""
        try:
            return os.read(self.descriptor, 65536).decode()
        except OSError:  # the last process of the job has gone
            raise AssertionError(self.said) from None

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())


@contextmanager
def _launch(folder: Path, script: str, *options: str) -> Iterator[_Terminal]:
    (folder / "script.py").write_text(script)
    terminal = _Terminal(folder, *options, "script.py")
    try:
        yield terminal
        assert terminal.job.wait(60) == 0
    finally:
        terminal.job.kill()  # the ranks notice
        os.close(terminal.descriptor)


def test_a_breakpoint_can_be_used(openmpi5: Launcher, tmp_path: Path) -> None:
    """Python's debugger prompts and follows commands; then rank 0 reads what is typed until Ctrl-D."""
    script = """
import os, sys
answer, rank = 41, os.environ["OMPI_COMM_WORLD_RANK"]
if rank == "0":
    breakpoint()
    print("the answer is", answer + 1)
print("rank", rank, "read", len(sys.stdin.read().split()), "words")
"""
    with _launch(tmp_path, script, *openmpi5.options) as terminal:
        for shown, typed in (
            ("(Pdb) ", "p answer * 2\n"), ("82", ""), ("(Pdb) ", "answer = 99\n"), ("(Pdb) ", "continue\n"),
            ("the answer is 100", "two words\n\x04"), ("rank 0 read 2 words", ""),
        ):  # fmt: skip
            terminal.wait_for(shown)
            terminal.type(typed)
    assert (tmp_path / "log_output/rank.1/stdout").read_text() == "rank 1 read 0 words\n"


@pytest.mark.parametrize("start", ["direct", "mpirun"])
def test_a_progress_bar_is_drawn_as_in_plain_python(start: str, openmpi5: Launcher, tmp_path: Path) -> None:
    """By rank 0, of which both streams are terminals of the same size, which changes; the files have what it wrote."""
    script = """
import os, signal, sys, time
from rich.progress import track
rank = int(os.environ["RANK"])
print("rank", rank, sys.stdout.isatty(), sys.stderr.isatty())
if rank == 0:
    signal.signal(signal.SIGWINCH, lambda *_: print("now", *os.get_terminal_size(), flush=True))
    print("sizes", *os.get_terminal_size(1), *os.get_terminal_size(2))
    for _ in track(range(4), description="work"):
        time.sleep(0.6)
    input("again")
"""
    with _launch(tmp_path, script, *(openmpi5.options if start == "mpirun" else [])) as terminal:
        for shown in ("rank 0 True True\r\n", "sizes 99 33 99 33\r\n", "25%", "50%", "75%", "100%", "again"):
            terminal.wait_for(shown)
        terminal.resize(22, 77)
        os.kill(terminal.job.pid, signal.SIGWINCH)  # the kernel tells only the session whose terminal it is
        terminal.wait_for("now 77 22")
        terminal.type("\n")
    assert (tmp_path / "log_output/rank.0/stdout").read_bytes().startswith(b"rank 0 True True\n")
    assert (tmp_path / "log_output/rank.1/stdout").read_text() == "rank 1 False False\n"


@pytest.mark.usefixtures("by_numpy")
def test_a_live_line_shows_how_far_the_job_is(openmpi5: Launcher, tmp_path: Path) -> None:
    """And the ranks' own lines stay whole above it; at the end it is gone."""
    terminal, screen = _Terminal(tmp_path, *openmpi5.options, "--data-dir", "data", "--epochs", "1000"), ""
    with suppress(AssertionError):  # its last writer has gone
        while True:
            screen += terminal.read()
    assert terminal.job.wait() == 0, screen
    assert re.search(r"\r\x1b\[K(epoch \d+/1000, loss \d\.\d{4}, slowest rank [01] on \S+ \(\d\.\d{3} s)", screen)
    lines = re.sub(r"[^\n]*\r\x1b\[K", "", screen.replace("\r\n", "\n"))
    assert re.search(r"^\d\d:\d\d:\d\d\.\d{3} \S+:0 INFO    epoch 1000/1000: loss", lines, re.MULTILINE)
