"""A training that ends early and goes on: elsewhere, on the other framework, after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from jobs.mpirun import BACKEND, NUMPY, NUMPY_BACKEND, UNPRIVILEGED, Finished, Launcher, alone, finish

INJECT = Path(__file__).parents[1] / "faults" / "inject"
pytestmark = pytest.mark.usefixtures("by_numpy")
BY_NUMPY = NUMPY | {BACKEND: "numpy"}
OPTIONS = ["--data-dir", "data", "--precision", "float64", "--checkpoint-every", "3"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a training that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    job = alone(["-m", "unilaunch", "run", *OPTIONS[:4], "--epochs", "12"], folder, BY_NUMPY).check()
    losses: list[float] = job.result["loss"]
    return losses


@pytest.fixture(scope="module")
def _six_epochs(openmpi5: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of six epochs on two ranks."""
    folder = tmp_path_factory.mktemp("six")
    openmpi5.unilaunch(2, ["run", *OPTIONS, "--epochs", "6"], folder, variables=BY_NUMPY).check()
    return folder


@pytest.fixture
def trained(_six_epochs: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return copytree(_six_epochs, tmp_path, dirs_exist_ok=True)


def _same(losses: list[float], whole: list[float]) -> None:
    assert len(losses) == len(whole)
    assert np.abs(np.array(losses) - whole).max() < 1e-10


@pytest.mark.mindspore
@pytest.mark.xdist_group("checkpoints")
def test_torch_begins_and_mindspore_goes_on(openmpi5: Launcher, whole: list[float], tmp_path: Path) -> None:
    """On another number of parts; the curve and the evaluations are those of one training."""
    openmpi5.unilaunch(3, ["run", *OPTIONS, "--epochs", "7", "--backend", "torch"], tmp_path).check()
    arguments = ["run", *OPTIONS, "--epochs", "12", "--backend", "mindspore", "--resume"]
    job = openmpi5.unilaunch(2, arguments, tmp_path).check()
    _same(job.result["loss"], whole)
    assert [one["epoch"] for one in job.result["evaluations"]] == [7, 10, 12]
    assert "resumed after epoch 7" in job.console


def test_a_run_resumed_is_bit_identical(openmpi5: Launcher, tmp_path: Path) -> None:
    """On the same framework and parts; and what has been trained already is only told again, by any framework."""
    arguments = ["run", "--data-dir", "data", "--backend", "torch", "--checkpoint-every", "3", "--epochs"]
    first = openmpi5.unilaunch(2, [*arguments, "9"], tmp_path).check().result["loss"]
    openmpi5.unilaunch(2, [*arguments, "5"], tmp_path).check()
    assert sorted(path.name for path in (tmp_path / "log_output" / "checkpoints").iterdir()) == [
        ".unilaunch", "best.safetensors", "epoch-000003.safetensors", "epoch-000005.safetensors", "final.safetensors"
    ]  # fmt: skip
    assert openmpi5.unilaunch(2, [*arguments, "9", "--resume"], tmp_path).check().result["loss"] == first
    told = alone(["-m", "unilaunch", *arguments, "9", "--resume", "--backend", "numpy"], tmp_path).check()
    assert told.result["loss"] == first


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
        job.wait(60)
    trained = int(max(checkpoints.glob("epoch-*")).name[6:12])
    resumed = openmpi5.unilaunch(2, [*arguments, str(trained + 5), "--resume"], tmp_path).check().result["loss"]
    _same(resumed, alone(["-m", "unilaunch", *arguments, str(trained + 5)], tmp_path).check().result["loss"])


@pytest.mark.xdist_group("checkpoints")
@pytest.mark.parametrize(("arguments", "words"), [
    (["--resume", "--lr", "0.1"], "are of a training with lr=0.01, not 0.1"),
    (["--resume", "--hidden", "8"], "another network"),
    (["--checkpoint-dir", "log_output/checkpoints"], "it holds checkpoints: --resume, or another folder"),
])  # fmt: skip
def test_another_training_is_refused(openmpi5: Launcher, arguments: list[str], words: str, trained: Path) -> None:
    """In one line, exit code 2; the checkpoints stay."""
    folder = trained / "log_output" / "checkpoints"
    if "--resume" not in arguments:
        folder = folder.rename(trained / "kept")
        arguments = ["--checkpoint-dir", "kept"]
    job = openmpi5.unilaunch(2, ["run", *OPTIONS, "--epochs", "6", *arguments], trained)
    assert job.returncode == 2
    (line,) = job.refusals()
    assert words in line
    assert sorted(path.name for path in folder.iterdir()) == [
        ".unilaunch", "best.safetensors", "epoch-000003.safetensors", "epoch-000006.safetensors", "final.safetensors"
    ]  # fmt: skip


@pytest.mark.xdist_group("checkpoints")
@pytest.mark.parametrize(
    ("launcher", "every"), [("5.0", ["--checkpoint-every", "3"]), ("4.1", [])], ids=["every 3", "default"],
    indirect=["launcher"],
)  # fmt: skip
def test_launch_starts_a_job_again(launcher: Launcher, every: list[str], whole: list[float], tmp_path: Path) -> None:
    """From the newest checkpoint, after a rank was killed; its curve is that of a training without a fault."""
    variables = {"FAULT": f"SIGKILL epoch 1 {tmp_path}", "PYTHONPATH": f"{INJECT}:{NUMPY_BACKEND}"}
    options = ["--mpirun", str(launcher.path), "--allow-run-as-root", "--oversubscribe", "--max-restarts", "2"]
    arguments = ["-m", "unilaunch", "launch", "-n", "2", *options, *OPTIONS[:4], *every, "--epochs", "12"]
    job = alone(arguments, tmp_path, variables).check()
    assert "killed by SIGKILL" in job.console
    assert "unilaunch: restart 1 of 2, with 2 ranks" in job.console
    assert "restart 2" not in job.console
    assert f"resumed after epoch {'3' if every else ''}" in job.console
    _same(job.result["loss"], whole)


def test_a_program_is_told_that_it_was_started_again(openmpi5: Launcher, tmp_path: Path) -> None:
    """As under torchrun, with any exit code of its own; and no more often than it may be."""
    (tmp_path / "again.py").write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "count = os.environ['TORCHELASTIC_RESTART_COUNT']\nPath('seen.' + count).touch()\n"
        "sys.exit(2 if int(count) < 9 else 0)\n"
    )
    options = ["--mpirun", str(openmpi5.path), "--allow-run-as-root", "--oversubscribe", "--max-restarts", "2"]
    job = alone(["-m", "unilaunch", "launch", "-n", "2", *options, "again.py"], tmp_path)
    assert job.returncode == 2
    assert sorted(path.name for path in tmp_path.glob("seen.*")) == ["seen.0", "seen.1", "seen.2"]
    assert json.loads((tmp_path / "log_output" / "report.json").read_text())["exit_code"] == 2


def test_the_end_of_a_job_that_cannot_be_restarted_is_kept(openmpi5: Launcher, tmp_path: Path) -> None:
    """Its exit code and its report are those of the failure; a line says why there is no restart."""
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    (tmp_path / "fails.py").write_text("from pathlib import Path\nPath('hosts').unlink(True)\nraise SystemExit(3)\n")
    options = ["--mpirun", str(openmpi5.path), "--allow-run-as-root", "--max-restarts", "1", "--hostfile", "hosts"]
    job = alone(["-m", "unilaunch", "launch", "-n", "2", *options, "fails.py"], tmp_path)
    assert job.returncode == 3, job.console
    assert job.refusals()[-1].startswith("unilaunch: no restart: --hostfile hosts: no such file")
    assert json.loads((tmp_path / "log_output" / "report.json").read_text())["exit_code"] == 3


def _forbid_file(folder: Path) -> Path:
    path = folder / "epoch-000006.safetensors"
    path.chmod(0)
    return path


def _forbid_folder(folder: Path) -> Path:
    folder.chmod(0o300)  # what is in it can be written and removed, but not listed
    return folder


def _break_disk(folder: Path) -> Path:
    path = folder / "epoch-000006.safetensors"
    path.unlink()
    path.symlink_to("/proc/self/mem")  # reading it is EIO
    return path


@pytest.mark.xdist_group("checkpoints")
@pytest.mark.parametrize(("forbid", "words"), [
    (_forbid_file, "Permission denied"), (_forbid_folder, "Permission denied"), (_break_disk, "Input/output error"),
], ids=["a file", "the folder", "a disk's error"])  # fmt: skip
def test_checkpoints_that_cannot_be_read_stop_the_job(
    openmpi5: Launcher, forbid: Callable[[Path], Path], words: str, trained: Path
) -> None:
    """One line with the file and the cause, no epoch is trained, and every checkpoint is there afterwards."""
    folder = trained / "log_output" / "checkpoints"
    before = {path.name: path.read_bytes() for path in folder.glob("epoch-*")}
    assert sorted(before) == ["epoch-000003.safetensors", "epoch-000006.safetensors"]
    named = forbid(folder)
    arguments = ["run", *OPTIONS, "--epochs", "9", "--resume", "--keep-checkpoints", "1"]
    job = _without_privilege(openmpi5, arguments, trained)
    assert job.returncode == 2
    (line,) = job.refusals()
    assert f"{named.relative_to(trained)} cannot be read: {words}" in line
    assert "Traceback" not in job.console
    for rank in range(2):
        assert json.loads((job.output / f"rank.{rank}" / "failure.json").read_text())["exit_code"] == 2
    assert not list(job.output.glob("rank.*/epochs.jsonl"))
    if not named.is_symlink():
        named.chmod(0o700)  # what follows looks into it without root's rights, too
    kept = {path.name for path in folder.glob("epoch-*")}
    assert kept == set(before)
    assert all((folder / name).is_symlink() or (folder / name).read_bytes() == before[name] for name in kept)


def _without_privilege(launcher: Launcher, arguments: list[str], folder: Path) -> Finished:
    line = [*UNPRIVILEGED, str(launcher.path), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
    return finish([*line, "-m", "unilaunch", *arguments], folder, None)


@pytest.mark.parametrize(("arguments", "words"), [
    ([], "--checkpoint-dir models: it holds checkpoints: --resume, or another folder"),
    (["--resume"], "--resume: models holds best.safetensors alone, from which no training goes on"),
])  # fmt: skip
def test_another_trainings_best_model_stays(arguments: list[str], words: str, trained: Path) -> None:
    """Though nothing else is in the folder."""
    best = trained / "models" / "best.safetensors"
    best.parent.mkdir()
    (trained / "log_output" / "checkpoints" / best.name).rename(best)
    before = best.read_bytes()
    line = ["-m", "unilaunch", "run", *OPTIONS, "--epochs", "6", "--seed", "3", "--checkpoint-dir", "models"]
    job = alone([*line, *arguments], trained)
    assert job.returncode == 2, job.console
    assert words in job.refusals()[0]
    assert best.read_bytes() == before


@pytest.mark.parametrize("is_same", [False, True], ids=["another training", "the same"])
def test_a_best_model_beside_a_damaged_checkpoint(trained: Path, *, is_same: bool) -> None:
    """Another training's stays; of the same training it is made again."""
    folder, models = trained / "log_output" / "checkpoints", trained / "models"
    models.mkdir()
    for name in ("best.safetensors", "final.safetensors"):
        (folder / name).rename(models / name)
    os.truncate(models / "final.safetensors", 100)
    before = (models / "best.safetensors").read_bytes()
    seed = [] if is_same else ["--seed", "3"]
    job = alone(
        ["-m", "unilaunch", "run", *OPTIONS, "--epochs", "6", *seed, "--checkpoint-dir", "models", "--resume"], trained
    )
    assert "models/final.safetensors is damaged, and no older one is whole" in job.console
    assert job.returncode == (0 if is_same else 2), job.console
    if not is_same:
        (line,) = [line for line in job.refusals() if "damaged" not in line]
        assert "models/best.safetensors is of another training (its seed is 0, not 3)" in line
        assert (models / "best.safetensors").read_bytes() == before


def test_a_best_model_under_another_name_is_no_checkpoint(openmpi5: Launcher, trained: Path) -> None:
    """It has no moments of Adam. A copy of an old checkpoint, with a number that is no epoch, is left out."""
    folder = trained / "log_output" / "checkpoints"
    arguments = ["run", *OPTIONS, "--epochs", "9", "--resume"]
    (folder / "epoch-000003.safetensors").rename(folder / "epoch-000003 (1).safetensors")
    (folder / "best.safetensors").rename(folder / "epoch-000010.safetensors")
    job = openmpi5.unilaunch(2, arguments, trained)
    assert job.returncode == 2
    (line,) = job.refusals()
    assert "the newest checkpoint in log_output/checkpoints holds weights alone" in line.replace(f"{trained}/", "")
    assert "Traceback" not in job.console
    (folder / "epoch-000010.safetensors").unlink()
    assert "resumed after epoch 6" in openmpi5.unilaunch(2, arguments, trained).check().console


def test_a_folder_of_checkpoints_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    """Before an epoch is trained."""
    line = ["-m", "unilaunch", "run", "--data-dir", "data", "--epochs", "2", "--checkpoint-dir", "/proc/nope"]
    job = alone(line, tmp_path)
    assert job.returncode == 2, job.console
    words = "--checkpoint-dir /proc/nope: cannot be written: No such file or directory: choose another folder, or"
    assert f"{words} --no-save-model" in job.refusals()[0]
    assert not list(job.output.glob("rank.*/epochs.jsonl"))


def test_a_changed_graph_is_another_training(openmpi5: Launcher, tmp_path: Path) -> None:
    """Under the same name it is refused in one line; what it was goes on, under any name, on any number of parts."""
    file = tmp_path / "graph.npz"
    arrays = _graph()
    np.savez(file, **arrays)
    arguments = ["run", "--dataset", "graph.npz", *OPTIONS, "--resume", "--epochs"]
    openmpi5.unilaunch(2, [*arguments, "3"], tmp_path).check()
    arrays["x"][0, 0] += 1
    np.savez(file, **arrays)
    job = openmpi5.unilaunch(2, [*arguments, "6"], tmp_path)
    assert job.returncode == 2
    (line,) = job.refusals()
    assert "the data set graph.npz has another content than when the checkpoints" in line
    arrays["x"][0, 0] -= 1
    np.savez(file, **_graph())
    file.rename(tmp_path / "moved.npz")
    arguments[2] = str(tmp_path / "moved.npz")
    assert "resumed after epoch 3" in openmpi5.unilaunch(3, [*arguments, "6"], tmp_path).check().console


def _graph() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    x = draw.random((90, 6), dtype=np.float32)
    return {"edge_index": draw.integers(0, 90, (2, 300)), "x": x, "y": np.arange(90) % 3}


def test_an_early_end_is_kept(openmpi5: Launcher, tmp_path: Path) -> None:
    """A training that patience ends leaves its last weights; to go on from them is to be at the end."""
    arguments = ["run", "--data-dir", "data", "--checkpoint-every", "50", "--epochs", "200"]
    arguments += ["--lr", "0.5", "--eval-every", "1", "--patience", "2"]
    result = openmpi5.unilaunch(2, arguments, tmp_path).check().result
    trained = result["epochs"]
    assert trained < 50
    checkpoints = tmp_path / "log_output" / "checkpoints"
    assert [path.name for path in checkpoints.glob("epoch-*")] == [f"epoch-{trained:06}.safetensors"]
    again = openmpi5.unilaunch(2, [*arguments, "--resume"], tmp_path).check()
    assert f"resumed after epoch {trained}" in again.console
    assert {name: again.result[name] for name in ("loss", "evaluations")} == {
        name: result[name] for name in ("loss", "evaluations")
    }
    measured = ("seconds_per_epoch", "communication_seconds", "bytes_per_epoch")
    assert {one[name] for one in (again.result, *again.result["ranks"]) for name in measured} == {None}
    assert "seconds per epoch" not in again.stdout
    whole = ["run", "--data-dir", "data", "--checkpoint-every", "2", "--epochs", "2", "--output-dir", "whole"]
    openmpi5.unilaunch(2, whole, tmp_path).check()
    assert (
        "nothing is left to train: 2 of 2 epochs are done"
        in openmpi5.unilaunch(2, [*whole, "--resume"], tmp_path).check().console
    )


def test_patience_counts_as_in_a_single_run(openmpi5: Launcher, tmp_path: Path) -> None:
    """Though the run before ended between two evaluations, with one of its own."""
    arguments = ["run", "--data-dir", "data", "--lr", "0.5", "--eval-every", "4", "--patience", "2", "--epochs"]
    whole = openmpi5.unilaunch(2, [*arguments, "200"], tmp_path).check().result["epochs"]
    assert whole < 200
    for before in (whole - 6, whole - 2):
        openmpi5.unilaunch(2, [*arguments, str(before)], tmp_path).check()
        again = openmpi5.unilaunch(2, [*arguments, "200", "--resume"], tmp_path).check()
        assert f"resumed after epoch {before}" in again.console
        assert again.result["epochs"] == whole


@pytest.mark.usefixtures("by_numpy")
def test_patience_counts_evaluations_of_another_interval(openmpi5: Launcher, tmp_path: Path) -> None:
    """Those before a resume count as they were made: only common multiples did, so a training went on too long."""
    arguments = ["run", "--data-dir", "data", "--lr", "0.5", "--patience", "2", "--epochs"]
    whole = openmpi5.unilaunch(2, [*arguments, "200", "--eval-every", "4"], tmp_path).check().result["epochs"]
    before = whole - 4  # one evaluation was no better
    openmpi5.unilaunch(2, [*arguments, str(before), "--eval-every", "4"], tmp_path).check()
    again = openmpi5.unilaunch(2, [*arguments, "200", "--eval-every", str(whole), "--resume"], tmp_path).check()
    assert again.result["epochs"] == whole


def test_what_was_never_evaluated_is_evaluated(openmpi5: Launcher, tmp_path: Path) -> None:
    """A checkpoint of all epochs, older than any evaluation: the result is that of one training."""
    arguments = ["run", *OPTIONS, "--no-save-model", "--eval-every", "100", "--epochs"]
    openmpi5.unilaunch(2, [*arguments, "4"], tmp_path).check()
    (tmp_path / "log_output" / "checkpoints" / "epoch-000004.safetensors").unlink()
    resumed = openmpi5.unilaunch(2, [*arguments, "3", "--resume"], tmp_path).check().result
    whole = openmpi5.unilaunch(2, [*arguments, "3"], tmp_path).check().result
    assert resumed["loss"] == whole["loss"]
    assert [one["epoch"] for one in resumed["evaluations"]] == [3]
    assert resumed["evaluations"] == whole["evaluations"]


def test_resumed_runs_keep_as_many_checkpoints_as_one(tmp_path: Path) -> None:
    """Those of the runs before count: the newest are kept."""
    for epochs in ("9", "18", "27"):
        options = [*OPTIONS, "--keep-checkpoints", "3", "--epochs", epochs, "--resume", "--checkpoint-dir", "kept"]
        alone(["-m", "unilaunch", "run", *options], tmp_path, BY_NUMPY).check()
    kept = sorted(path.name for path in tmp_path.glob("kept/epoch-*"))
    assert kept == [f"epoch-{epoch:06d}.safetensors" for epoch in (21, 24, 27)]
