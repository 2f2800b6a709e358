"""`unilaunch logs`, over what real jobs have written."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.mpirun import UNPRIVILEGED, Launcher, alone, finish, unilaunch

SCRIPT = (
    "import os, sys, time\nrank = int(os.environ.get('OMPI_COMM_WORLD_RANK', 0))\n"
    "print('hello')\nprint(f'I am {rank}', file=sys.stderr)\nsys.stdout.flush()\ntime.sleep(0.3)\n"
)


def _logs(folder: Path, *arguments: str) -> list[str]:
    return unilaunch(["logs", *arguments], folder).check().stdout.splitlines()


def test_our_folder(openmpi5: Launcher, tmp_path: Path) -> None:
    """With the first failure on top, and what all say once."""
    meet = (  # no rank fails, and ends the others, before all have printed
        "from pathlib import Path\ndef meet(place):\n    Path(f'{place}.{rank}').touch()\n"
        "    while len(list(Path().glob(f'{place}.?'))) < 4: time.sleep(0.01)\n"
    )
    head, said = SCRIPT.split("print(", 1)
    script = f"{head}{meet}meet('begun')\nprint({said}meet('said')\nif rank == 2: sys.exit(5)\ntime.sleep(30)\n"
    (tmp_path / "script.py").write_text(script)
    openmpi5.unilaunch(4, ["run", "script.py"], tmp_path)
    lines = _logs(tmp_path)
    assert lines[0].startswith("unilaunch: rank 2 on ")
    assert "SystemExit: 5" in lines[0]
    assert [line.partition(" ")[2] for line in lines if "hello" in line] == ["[x4] hello"]
    assert sum("I am" in line for line in lines) == 4
    assert [line.split()[-1] for line in _logs(tmp_path, "--rank", "1,3", "--grep", "I am")[1:]] in (
        ["1", "3"],
        ["3", "1"],
    )
    told = [json.loads(line) for line in _logs(tmp_path, "--json", "--grep", "hello")]
    assert [(one["count"], sorted(one["ranks"]), one["stream"]) for one in told] == [(4, [0, 1, 2, 3], "stdout")]
    assert abs(told[0]["time"] - time.time()) < 60
    assert len(_logs(tmp_path, "--no-fold", "--grep", "hello")) == 1 + 4


def test_mpiruns_own_files(launcher: Launcher, tmp_path: Path) -> None:
    """What --output-filename writes: a tree in 4, files beside it in 5."""
    (tmp_path / "script.py").write_text(SCRIPT)
    launcher.run(3, ["script.py"], tmp_path, options=("--output-filename", "log_output")).check()
    lines = _logs(tmp_path)
    assert sum(line.endswith("[x3] hello") for line in lines) == 1
    assert {line[-6:] for line in lines if "I am" in line} == {"I am 0", "I am 1", "I am 2"}


@pytest.mark.parametrize("end", ["", "import os\nos._exit(0)\n"])
def test_a_live_job_is_followed_to_its_end(openmpi5: Launcher, end: str, tmp_path: Path) -> None:
    """From before it begins; also a script that does not return to unilaunch."""
    (tmp_path / "script.py").write_text(f"{SCRIPT}time.sleep(1)\nprint('later', rank, flush=True)\n{end}")
    line = [sys.executable, "-m", "unilaunch", "logs", "--follow"]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as follower:
        openmpi5.unilaunch(2, ["run", "script.py"], tmp_path).check()
        said, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert [text in said for text in ("hello", "I am 0", "I am 1", "later 0", "later 1")] == [True] * 5


@pytest.mark.parametrize(("arguments", "words"), [
    (["nowhere"], "nowhere: no output of ranks"), (["--grep", "("], "--grep (: no regular expression"),
    (["--rank", "one"], "--rank one: expected numbers"), (["--since", "yesterday"], "--since yesterday: expected 90s"),
    (["--level", "LOUD"], "--level"), (["--rank", "2-5"], "--rank 2-5: no output of such a rank in log_output"),
])  # fmt: skip
def test_refusals(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "log_output" / "rank.1").mkdir(parents=True)
    (tmp_path / "log_output" / "rank.1" / "stdout").write_text("1\n")
    assert words in unilaunch(["logs", *arguments], tmp_path).refusal()


@pytest.mark.parametrize("words", ["logs --follow", "status", "stacks", "report"])
def test_a_folder_that_may_not_be_read_is_one_line(words: str, tmp_path: Path) -> None:
    """It was said to have no output of ranks."""
    (rank := tmp_path / "log_output" / "rank.0").mkdir(parents=True)
    for closed in (rank, rank.parent):
        closed.chmod(0)
        job = finish([*UNPRIVILEGED, sys.executable, "-m", "unilaunch", *words.split()], tmp_path, {})
        rank.parent.chmod(0o700)
        expected = ("no permission to read it", "Permission denied", "the job there belongs to another user")
        assert any(text in job.refusal() for text in expected)


def test_what_a_terminal_would_obey_is_not_passed_on(tmp_path: Path) -> None:
    """Colours, titles and cursor moves of a rank stay out of pipes, files and JSON; on a terminal colours are left."""
    (tmp_path / "script.py").write_text("print('\\x1b[1A\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07end')\n")
    unilaunch(["run", "script.py"], tmp_path).check()
    assert [line.partition(" ")[2].partition(" ")[2] for line in _logs(tmp_path, "--grep", "red end")] == ["red end"]
    assert [json.loads(line)["text"] for line in _logs(tmp_path, "--json", "--grep", "red")] == ["red end"]
    on_a_terminal = f"import pty; pty.spawn({[sys.executable, '-m', 'unilaunch', 'logs']!r})"
    shown = alone(["-c", on_a_terminal], tmp_path, {"TERM": "xterm"}).stdout
    assert [text in shown for text in ("\x1b[31mred\x1b[0m end", "\x1b[1A", "title")] == [True, False, False]
