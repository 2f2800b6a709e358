"""A training that ends early and goes on: elsewhere, on the other framework, after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher, alone

INJECT = Path(__file__).parents[1] / "faults" / "inject"
OPTIONS = ["--data-dir", "data", "--precision", "float64", "--checkpoint-every", "3"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a training that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    job = alone(["-m", "unilaunch", "run", *OPTIONS[:4], "--epochs", "12"], folder).check()
    losses: list[float] = job.result["loss"]
    return losses


def _same(losses: list[float], whole: list[float]) -> None:
    assert len(losses) == len(whole)
    assert np.abs(np.array(losses) - whole).max() < 1e-10


def test_torch_begins_and_mindspore_goes_on(launcher: Launcher, whole: list[float], tmp_path: Path) -> None:
    """On another number of parts; the curve and the evaluations are those of one training."""
    launcher.unilaunch(2, ["run", *OPTIONS, "--epochs", "7", "--backend", "torch"], tmp_path).check()
    arguments = ["run", *OPTIONS, "--epochs", "12", "--backend", "mindspore", "--resume"]
    job = launcher.unilaunch(3, arguments, tmp_path).check()
    _same(job.result["loss"], whole)
    assert [one["epoch"] for one in job.result["evaluations"]] == [7, 10, 12]
    assert "resumed after epoch 7" in job.console


def test_a_run_resumed_is_bit_identical(openmpi5: Launcher, tmp_path: Path) -> None:
    """On the same framework and parts; and what has been trained already is only told again."""
    arguments = ["run", "--data-dir", "data", "--checkpoint-every", "3", "--epochs"]
    first = openmpi5.unilaunch(2, [*arguments, "9"], tmp_path).check().result["loss"]
    openmpi5.unilaunch(2, [*arguments, "5"], tmp_path).check()
    assert sorted(path.name for path in (tmp_path / "log_output" / "checkpoints").iterdir()) == [
        "epoch-000003.safetensors", "epoch-000005.safetensors"
    ]  # fmt: skip
    assert openmpi5.unilaunch(2, [*arguments, "9", "--resume"], tmp_path).check().result["loss"] == first
    assert openmpi5.unilaunch(2, [*arguments, "9", "--resume"], tmp_path).check().result["loss"] == first


def test_a_killed_job_goes_on(openmpi5: Launcher, tmp_path: Path) -> None:
    """All its processes at once, in mid-run."""
    arguments = ["run", "--data-dir", "data", "--precision", "float64", "--checkpoint-every", "2", "--epochs"]
    line = [str(openmpi5.path), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-m", "unilaunch"]
    with subprocess.Popen([*line, *arguments, "1000000"], cwd=tmp_path, stderr=subprocess.DEVNULL) as job:
        checkpoints = tmp_path / "log_output" / "checkpoints"
        deadline = time.monotonic() + 60
        while not (checkpoints.is_dir() and any(checkpoints.glob("epoch-*"))):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]:
            try:
                if Path(f"/proc/{pid}/cwd").readlink() == tmp_path:
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        job.wait(20)
    trained = int(max(checkpoints.glob("epoch-*")).name[6:12])
    resumed = openmpi5.unilaunch(2, [*arguments, str(trained + 5), "--resume"], tmp_path).check().result["loss"]
    _same(resumed, alone(["-m", "unilaunch", *arguments, str(trained + 5)], tmp_path).check().result["loss"])


@pytest.mark.parametrize(("arguments", "words"), [
    (["--resume", "--lr", "0.1"], "are of a training with lr=0.01, not 0.1"),
    (["--resume", "--hidden", "8"], "another network"),
    (["--checkpoint-dir", "log_output/checkpoints"], "it holds checkpoints: --resume, or another folder"),
])  # fmt: skip
def test_another_training_is_refused(openmpi5: Launcher, arguments: list[str], words: str, tmp_path: Path) -> None:
    """In one line, exit code 2; the checkpoints stay."""
    alone(["-m", "unilaunch", "run", *OPTIONS, "--epochs", "3"], tmp_path).check()
    folder = tmp_path / "log_output" / "checkpoints"
    if "--resume" not in arguments:
        folder = folder.rename(tmp_path / "kept")
        arguments = ["--checkpoint-dir", "kept"]
    job = openmpi5.unilaunch(2, ["run", *OPTIONS, "--epochs", "3", *arguments], tmp_path)
    assert job.returncode == 2
    (line,) = job.refusals()
    assert words in line
    assert [path.name for path in folder.iterdir()] == ["epoch-000003.safetensors"]


def test_launch_starts_a_job_again(launcher: Launcher, whole: list[float], tmp_path: Path) -> None:
    """From the newest checkpoint, after a rank was killed; its curve is that of a training without a fault."""
    variables = {"FAULT": f"SIGKILL epoch 1 {tmp_path}", "PYTHONPATH": str(INJECT)}
    options = ["--mpirun", str(launcher.path), "--allow-run-as-root", "--oversubscribe", "--max-restarts", "2"]
    arguments = ["-m", "unilaunch", "launch", "-n", "2", *options, *OPTIONS, "--epochs", "12"]
    job = alone(arguments, tmp_path, variables).check()
    assert "killed by SIGKILL" in job.console
    assert "unilaunch: restart 1 of 2, with 2 ranks" in job.console
    assert "restart 2" not in job.console
    assert "resumed after epoch 3" in job.console
    _same(job.result["loss"], whole)


def test_a_program_is_told_that_it_was_started_again(openmpi5: Launcher, tmp_path: Path) -> None:
    """As under torchrun; and no more often than it may be."""
    (tmp_path / "again.py").write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "count = os.environ['TORCHELASTIC_RESTART_COUNT']\nPath('seen.' + count).touch()\nsys.exit(int(count) < 9)\n"
    )
    options = ["--mpirun", str(openmpi5.path), "--allow-run-as-root", "--oversubscribe", "--max-restarts", "2"]
    job = alone(["-m", "unilaunch", "launch", "-n", "2", *options, "again.py"], tmp_path)
    assert job.returncode == 1
    assert sorted(path.name for path in tmp_path.glob("seen.*")) == ["seen.0", "seen.1", "seen.2"]
    assert json.loads((tmp_path / "log_output" / "report.json").read_text())["exit_code"] == 1
