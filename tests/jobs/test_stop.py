"""Stopping a job: the user's signals reach the ranks, which have time to save; what is ignored stays ignored.

That a stop is bounded by --grace is a cell of the fault matrix.
"""

import re
import signal
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen

import numpy as np
import pytest

from jobs.mpirun import Launcher, unilaunch, wait_until
from jobs.ports import free_ports
from unilaunch.agent.processes import state
from unilaunch.spec.variables import KEY

pytestmark = pytest.mark.timed

#: Ranks 0 and 1 save for longer than mpirun would wait, rank 2 does not save; all count SIGUSR1.
SAVE = """
import atexit, os, signal, sys, time
from pathlib import Path
rank = os.environ["RANK"]
def mark(name):
    Path(f"{name}.{rank}").write_text(str(os.getpid()))
def save(*_):
    time.sleep(float(sys.argv[1]))
    mark("saved")
    atexit.register(mark, "left")
    sys.exit(0)
signal.signal(signal.SIGUSR1, lambda *_: mark("usr1"))
if rank != "2":
    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGHUP, save)
try:
    mark("up")
    until = time.monotonic() + 60
    while not Path("end").exists() and time.monotonic() < until:
        time.sleep(0.05)
except KeyboardInterrupt:
    if rank != "2":
        save()
    sys.exit(130)
"""


def _launch(launcher: Launcher, *words: str) -> list[str]:
    return [sys.executable, "-m", "unilaunch", "launch", "-n", "3", *launcher.options, *words]


def _start(launcher: Launcher, seconds: str, folder: Path, program: str = SAVE, *before: str) -> "Popen[str]":
    """Start three ranks that save for so many seconds, and wait until all are up."""
    (folder / "save.py").write_text(program)
    line = [*before, *_launch(launcher, "save.py", "--", seconds)]
    job = Popen(line, cwd=folder, text=True, process_group=0, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    wait_until(lambda: len(_marks(folder, "up")) == 3)
    return job


def _marks(folder: Path, name: str) -> list[str]:
    return sorted(path.suffix[1:] for path in folder.glob(f"{name}.*") if path.suffix != ".py")


def test_ctrl_z_pauses_and_nohup_outlives_the_terminal(openmpi5: Launcher, tmp_path: Path) -> None:
    """All ranks pause with launch, until the shell continues it. A SIGHUP that was ignored stays ignored."""
    job = _start(openmpi5, "0", tmp_path, SAVE, "nohup")
    job.send_signal(signal.SIGHUP)
    wait_until(lambda: all(path.read_text() for path in tmp_path.glob("up.*")))
    processes = [job.pid, *(int(path.read_text()) for path in tmp_path.glob("up.*"))]
    job.send_signal(signal.SIGTSTP)
    wait_until(lambda: {state(process) for process in processes} == {"T"})
    job.send_signal(signal.SIGCONT)
    wait_until(lambda: "T" not in {state(process) for process in processes})
    time.sleep(1)
    (tmp_path / "end").touch()
    job.communicate(timeout=60)
    assert (job.returncode, _marks(tmp_path, "saved")) == (0, [])


#: Each rank has forked a process that comes out of the script, and has ended well.
FORKING = SAVE.replace('mark("up")', "os.fork() or sys.exit(0); time.sleep(0.5); mark('up')")


@pytest.mark.parametrize(("launcher", "number", "program"), [
    ("4.1", signal.SIGTERM, SAVE), ("5.0", signal.SIGINT, SAVE), ("5.0", signal.SIGHUP, FORKING)
], indirect=["launcher"], ids=["4.1", "5.0", "5.0 forking"])  # fmt: skip
def test_ranks_have_time_to_save(launcher: Launcher, number: signal.Signals, program: str, tmp_path: Path) -> None:
    """All ranks get the signal itself; one that ends at once does not end the others; SIGUSR1 ends nothing."""
    job = _start(launcher, "2.5", tmp_path, program)
    job.send_signal(signal.SIGUSR1)
    wait_until(lambda: _marks(tmp_path, "usr1") == ["0", "1", "2"])
    begin = time.monotonic()
    job.send_signal(number)
    said, _ = job.communicate(timeout=60)
    assert 2.5 < time.monotonic() - begin < 20
    assert job.returncode == 128 + number
    assert _marks(tmp_path, "saved") == _marks(tmp_path, "left") == ["0", "1"]
    assert f"unilaunch: {number.name}: the ranks have 30 s to end; a second signal ends them at once\n" in said
    assert not list(tmp_path.glob("log_output/rank.*/failure.json"))
    assert unilaunch(["status"], tmp_path).stdout.startswith("stopped: 3 ranks\n")


@pytest.mark.parametrize("console", ["closed", "full"])
def test_a_second_signal_ends_at_once(console: str, openmpi5: Launcher, tmp_path: Path) -> None:
    """Also while ranks save, though nobody reads the console (Ctrl-C ends `| tee` too, and `less` waits)."""
    job = _start(openmpi5, "50", tmp_path, SAVE.replace('mark("up")', "print('x' * 400_000); mark('up')"))
    assert job.stdout
    if console == "closed":
        job.stdout.close()
    job.send_signal(signal.SIGINT)
    time.sleep(1)
    assert job.poll() is None
    job.send_signal(signal.SIGTERM)
    assert job.wait(20) == 130  # the first
    job.stdout.close()


def test_a_script_that_saves_at_a_signal_has_not_failed(tmp_path: Path) -> None:
    """As under srun and in a JobSet. The rank that has saved first does not end the other one; no line is shown."""
    out = tmp_path / "out"
    (tmp_path / "save.py").write_text(SAVE.replace("sys.exit(0)", "sys.exit(75)"))
    meeting = ["WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={free_ports(1)[0]}", f"{KEY}={'aa' * 32}"]
    line = [sys.executable, "-m", "unilaunch", "run", "save.py", "--"]
    with out.open("w") as file:
        lines = [["env", *meeting, f"RANK={rank}", *line, seconds] for rank, seconds in ((0, "2"), (1, "0"))]
        ranks = [Popen(line, cwd=tmp_path, stdout=file, stderr=file) for line in lines]
    try:
        wait_until(lambda: len(_marks(tmp_path, "up")) == 2)
        for rank in ranks:
            rank.terminate()
        assert [rank.wait(60) for rank in ranks] == [75, 75], out.read_text()
    finally:
        for rank in ranks:
            rank.kill()  # none is left to the next test
    assert (len(_marks(tmp_path, "saved")), out.read_text()) == (2, "")
    assert not list(tmp_path.glob("log_output/rank.*/failure.json"))


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize(
    ("launcher", "number"), [("4.1", signal.SIGINT), ("5.0", signal.SIGUSR1)], indirect=["launcher"]
)
def test_a_training_that_is_stopped_goes_on(launcher: Launcher, number: signal.Signals, tmp_path: Path) -> None:
    """All ranks stop after the same epoch, with a checkpoint, one line, and the exit code for "start me again"."""
    options = ["--data-dir", "data", "--eval-every", "1000", "--precision", "float64", "--epochs"]
    line = _launch(launcher, *options, "1000000", "--max-restarts", "1")
    with (tmp_path / "out").open("w") as out:
        job = Popen(line, cwd=tmp_path, stdout=out, stderr=out)
    wait_until(lambda: "epoch 1/" in (tmp_path / "out").read_text())
    job.send_signal(number)
    assert job.wait(15) == 75
    said = (tmp_path / "out").read_text()
    assert "Traceback" not in said
    (stopped,) = re.findall(r"unilaunch: stopped after epoch (\d+) of 1000000; .* in \S*log_output/checkpoints", said)
    epochs = str(int(stopped) + 3)
    resumed = launcher.unilaunch(3, ["run", *options, epochs, "--resume"], tmp_path).check()
    assert f"resumed after epoch {stopped}" in resumed.console
    whole = unilaunch(["run", *options, epochs], tmp_path).check()
    np.testing.assert_allclose(resumed.result["loss"], whole.result["loss"], rtol=0, atol=1e-9)
