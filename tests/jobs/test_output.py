"""The output folder under a real mpirun: the user's files, two jobs in one folder, and what a script does to itself."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL

import pytest

from jobs.mpirun import NUMPY, Launcher, finish, kill_all, processes_in, wait_until
from jobs.mpirun import unilaunch as command


def test_the_users_files_stay_where_they_are(openmpi5: Launcher, tmp_path: Path) -> None:
    """With --output-dir . too: rank.py is no rank's folder, and a script's result.json is the script's."""
    (tmp_path / "rank.py").write_text("import os\nprint('I am', os.environ['RANK'])\n")
    mine = {"rank.txt": "a list", "result.json": "a result", "report.json": "a report", "checkpoints/newest": "weights"}
    (tmp_path / "checkpoints").mkdir()
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    for _ in range(2):
        openmpi5.unilaunch(2, ["run", "--output-dir", ".", "rank.py"], tmp_path).check()
    assert sorted(path.name for path in tmp_path.glob("rank.*")) == ["rank.0", "rank.1", "rank.py", "rank.txt"]
    assert {name: (tmp_path / name).read_text() for name in mine} == mine
    assert (tmp_path / "rank.1" / "stdout").read_text() == "I am 1\n"
    arguments = ["run", "--output-dir", ".", "--data-dir", "data", "--backend", "numpy"]
    assert "result.json is there" in openmpi5.unilaunch(2, arguments, tmp_path, variables=NUMPY).refusal()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("words", "code", "error"), [
    (["--lr", "3"], 2, "unrecognized arguments: --lr 3"), ([], 1, "No module named 'nosuch'"),
])  # fmt: skip
def test_what_cannot_start_is_not_started_again(
    openmpi5: Launcher, words: list[str], code: int, error: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\nimport nosuch\n")
    job = openmpi5.launch(2, ["--max-restarts", "2", "train.py", *words], tmp_path)
    assert (job.returncode, error in job.console, "restart 1" in job.console) == (code, True, False)
    assert job.report["first"]["cause"] == "cannot start"


#: It closes every descriptor it has, and forks a child that outlives the job: neither frees nor keeps the folder.
FIRST = """
import os, time
from pathlib import Path
rank = os.environ["RANK"]
if not os.fork():
    os.setsid(); time.sleep(60); os._exit(0)
os.closerange(3, 1000)
Path("began." + rank).touch()
while not Path("end").exists(): time.sleep(0.05)
print("done", rank)
"""


@contextmanager
def _running(launcher: Launcher, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start a job of two ranks, wait until all have begun, and leave nothing of it."""
    (folder / "first.py").write_text(FIRST)
    (folder / "second.py").write_text("open('second began', 'w')\n")
    line = [str(launcher.path), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-m", "unilaunch"]
    with subprocess.Popen([*line, "run", "first.py"], cwd=folder, text=True, stdin=DEVNULL, stdout=DEVNULL) as job:
        try:
            wait_until(lambda: len(list(folder.glob("began.*"))) == 2)
            yield job
        finally:
            kill_all(folder)


def test_a_second_job_in_the_folder_of_a_running_one_is_refused(openmpi5: Launcher, tmp_path: Path) -> None:
    """On all ranks, in one line that names it; nothing of the first one moves, and its output is all its own."""
    output = tmp_path / "log_output"
    with _running(openmpi5, tmp_path) as first:
        wait_until((output / ".monitor").exists)
        wait_until(lambda: len(list(output.glob("rank.*/usage.jsonl"))) == 2)  # the agent's last files
        before, spec = sorted(output.rglob("*")), (output / "spec.json").read_text()
        run = json.loads((output / "rank.0" / "events.jsonl").read_text().splitlines()[0])["run"]
        for second in (
            openmpi5.unilaunch(3, ["run", "second.py"], tmp_path),
            openmpi5.launch(2, ["--max-restarts", "3", "second.py"], tmp_path),
        ):
            assert f"run {run} is writing there (process " in (line := second.refusal())
            assert f" on {os.uname().nodename}, since " in line
        assert sorted(output.rglob("*")) == before
        (tmp_path / "end").touch()
        assert first.wait(60) == 0
        assert (output / "spec.json").read_text() == spec
        assert [(output / f"rank.{rank}" / "stdout").read_text() for rank in range(2)] == ["done 0\n", "done 1\n"]
        assert not (tmp_path / "second began").exists()
        openmpi5.unilaunch(2, ["run", "second.py"], tmp_path).check()


def test_a_job_that_is_killed_leaves_its_folder_free(openmpi5: Launcher, tmp_path: Path) -> None:
    with _running(openmpi5, tmp_path) as first:
        kill_all(tmp_path)
        first.wait(60)
        openmpi5.unilaunch(2, ["run", "second.py"], tmp_path).check()


@pytest.mark.parametrize("start", ["direct", "mpirun"])
def test_what_a_script_leaves_running_goes_on(start: str, openmpi5: Launcher, tmp_path: Path) -> None:
    """As in plain Python: SIGPIPE does not end it; what it prints is in the log, wherever the script has gone."""
    upload = "import time; time.sleep(6); print('sent', flush=True); open('complete', 'w').close()"
    chdir = "os.makedirs('there/log_output/rank.0'); os.chdir('there')"
    script = (
        f"import os, subprocess, sys\n{chdir}\nsubprocess.Popen([sys.executable, '-c', {upload!r}])\nprint('ends')\n"
    )
    (tmp_path / "leave.py").write_text(script)
    words = [*(openmpi5.options if start == "mpirun" else ["--launcher", "direct"]), "-n", "1", "leave.py"]
    job = command(["launch", *words], tmp_path).check()
    wait_until((tmp_path / "there" / "complete").exists)
    wait_until(lambda: not list(processes_in(tmp_path)))
    assert (job.said(0), list(tmp_path.glob("there/log_output/rank.0/*"))) == ("ends\nsent\n", [])


@pytest.mark.parametrize("act", [
    pytest.param("os.setgid(65534); os.setuid(65534)", marks=pytest.mark.system),
    "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
], ids=["setuid", "RLIMIT_FSIZE"])  # fmt: skip
def test_what_a_script_does_to_its_process_fails_no_job(act: str, tmp_path: Path) -> None:
    """It has finished: exit code 0, no restart, and one line says what cannot be written any more."""
    (tmp_path / "act.py").write_text(f"import os\n{act}\nprint('finished')\n")
    job = command(["launch", "-n", "1", "--max-restarts", "1", "act.py"], tmp_path).check()
    assert job.stdout == "finished\n"
    assert ["rank 0 can no longer write its records" in line for line in job.refusals()] == [True]


def test_what_launch_was_told_wins_over_the_environment_in_its_ranks(openmpi5: Launcher, tmp_path: Path) -> None:
    """Though it is the default; a program still finds its own environment."""
    (tmp_path / "say.py").write_text("import os\nprint(os.environ['UNILAUNCH_SEED'])\n")
    variables = {"UNILAUNCH_SEED": "7", "UNILAUNCH_OUTPUT_DIR": "elsewhere", "UNILAUNCH_THREADS": "3"}
    job = openmpi5.launch(2, ["--seed", "0", "--output-dir", "log_output", "say.py"], tmp_path, variables).check()
    spec = json.loads((job.output / "spec.json").read_text())
    assert (spec["seed"], spec["output_dir"], spec["threads"], job.stdout) == (0, "log_output", 3, "7\n")
    assert not (tmp_path / "elsewhere").exists()


def test_output_for_which_the_disk_has_no_room_is_not_lost_silently(tmp_path: Path) -> None:
    """`launch train.py > out.txt`: one line says so, and the log has all."""
    (tmp_path / "say.py").write_text("for number in range(9): print(number, flush=True)\n")
    line = f"{sys.executable} -m unilaunch launch --launcher direct -n 1 say.py > /dev/full"
    job = finish(["sh", "-c", line], tmp_path, None).check()
    assert job.stderr.count("output is no longer shown: No space left on device; it is still kept") == 1
    assert job.said(0).split() == [*map(str, range(9))]
