"""Output is kept in files and still shown, whoever writes it and however the process ends."""

import subprocess
import sys
from pathlib import Path

PROLOGUE = """
import os, subprocess, sys, signal
from pathlib import Path
from unilaunch.rank.capture import capture
out, err = Path('out'), Path('err')
"""


def _run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", PROLOGUE + program]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_every_writer_is_captured_and_shown(tmp_path: Path) -> None:
    """Python's print, a library's write to the descriptor, and a child's."""
    done = _run(
        "with capture(out, err):\n"
        "    print('from python'); os.write(1, b'from below\\n'); subprocess.run(['echo', 'from a child'])\n"
        "    print('an error', file=sys.stderr); os.write(2, b'glog\\n')\n"
        "print('after')\n",
        tmp_path,
    )
    for line in ("from python", "from below", "from a child"):
        assert line in (tmp_path / "out").read_text()
        assert line in done.stdout
    assert (tmp_path / "err").read_text() == done.stderr == "an error\nglog\n"
    assert "after" in done.stdout
    assert "after" not in (tmp_path / "out").read_text()


def test_files_are_complete_when_the_block_ends(tmp_path: Path) -> None:
    """Ten thousand lines, read back at once."""
    done = _run(
        "with capture(out, err):\n"
        "    for i in range(10000): print(f'line {i}')\n"
        "sys.exit(out.read_text() != ''.join(f'line {i}\\n' for i in range(10000)))\n",
        tmp_path,
    )
    assert done.returncode == 0
    assert done.stdout == (tmp_path / "out").read_text()


def test_what_was_written_before_sigkill_is_kept(tmp_path: Path) -> None:
    """Also a last line without its end."""
    done = _run(
        "with capture(out, err):\n    print('before')\n    os.write(1, b'last'); os.kill(os.getpid(), 9)\n", tmp_path
    )
    assert done.returncode == -9
    assert done.stdout == (tmp_path / "out").read_text() == "before\nlast"


def test_a_child_that_lives_on_does_not_hold_the_rank(tmp_path: Path) -> None:
    """A daemon keeps the pipe open; the rank ends all the same."""
    done = _run(
        "import time; begin = time.monotonic()\n"
        "with capture(out, err):\n    child = subprocess.Popen(['sleep', '20'])\n"
        "Path('waited').write_text(str(time.monotonic() - begin < 5)); child.kill(); child.wait()\n",
        tmp_path,
    )
    assert done.returncode == 0
    assert (tmp_path / "waited").read_text() == "True"


def test_the_last_words_are_in_the_file_on_return(tmp_path: Path) -> None:
    """A pipe's fill at the very end, fifty times: each is in the file as soon as the block has ended."""
    done = _run(
        "for i in range(50):\n"
        "    file = Path(f'out{i}')\n"
        "    with capture(file, err): os.write(1, b'x' * 60000)\n"
        "    if file.stat().st_size != 60000: sys.exit(f'{file}: {file.stat().st_size}')\n",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == 50 * 60000


def test_lines_that_go_straight_to_the_file_stay(tmp_path: Path) -> None:
    """The log of a rank writes to its file past the console; what is captured afterwards does not run over it."""
    done = _run(
        "with capture(out, err):\n"
        "    os.write(2, b'captured first\\n')\n"
        "    while not err.exists() or not err.stat().st_size: pass\n"
        "    with err.open('a') as file: file.write('a line of the log\\n')\n"
        "    os.write(2, b'captured last\\n')\n",
        tmp_path,
    )
    assert (tmp_path / "err").read_text() == "captured first\na line of the log\ncaptured last\n"
    assert done.stderr == "captured first\ncaptured last\n"
