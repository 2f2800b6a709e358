"""A training that ends early and goes on: elsewhere, on the other framework, after a kill."""

import os
import sys
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from jobs.mpirun import BACKEND, NUMPY, NUMPY_BACKEND, UNPRIVILEGED, Finished, Launcher, finish, unilaunch

INJECT = Path(__file__).parents[1] / "faults" / "inject"
pytestmark = [pytest.mark.usefixtures("by_numpy"), pytest.mark.xdist_group("checkpoints")]
OPTIONS = ["--data-dir", "data", "--precision", "float64", "--checkpoint-every", "3"]
BY_TORCH = ["run", *OPTIONS, "--epochs", "12", "--keep-checkpoints", "9", "--backend", "torch"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a training that nothing interrupts."""
    variables = NUMPY | {BACKEND: "numpy"}
    job = unilaunch(["run", *OPTIONS[:4], "--epochs", "12"], tmp_path_factory.mktemp("whole"), variables)
    return list(job.check().result["loss"])


@pytest.fixture(scope="module")
def by_torch(openmpi5: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Twelve epochs of PyTorch on two ranks, which nothing interrupts."""
    return openmpi5.unilaunch(2, BY_TORCH, tmp_path_factory.mktemp("torch")).check()


@pytest.fixture
def trained(by_torch: Finished, tmp_path: Path) -> Path:
    """A copy of its folder."""
    return copytree(by_torch.folder, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def killed(trained: Path) -> None:
    """As a kill after the sixth epoch leaves it."""
    for path in trained.glob("log_output/checkpoints/*.safetensors"):
        if path.name != "epoch-000006.safetensors":
            path.unlink()


@pytest.mark.mindspore
@pytest.mark.usefixtures("killed")
def test_torch_begins_and_mindspore_goes_on(whole: list[float], tmp_path: Path) -> None:
    """On another number of parts; the curve is that of one training."""
    job = unilaunch(["run", *OPTIONS, "--epochs", "12", "--backend", "mindspore", "--resume"], tmp_path).check()
    np.testing.assert_allclose(job.result["loss"], whole, rtol=0, atol=1e-10)
    assert [one["epoch"] for one in job.result["evaluations"]] == [10, 12]
    assert "resumed after epoch 6" in job.console


@pytest.mark.usefixtures("killed")
def test_a_run_resumed_is_bit_identical(openmpi5: Launcher, by_torch: Finished, tmp_path: Path) -> None:
    """On the same framework and parts; and what has been trained already is only told again, by any framework."""
    job = openmpi5.unilaunch(2, [*BY_TORCH, "--resume"], tmp_path).check()
    assert "resumed after epoch 6" in job.console
    told = unilaunch([*BY_TORCH, "--resume", "--backend", "numpy"], tmp_path).check()
    assert "nothing is left to train" in told.console
    assert job.result["loss"] == told.result["loss"] == by_torch.result["loss"]


@pytest.mark.parametrize("every", [["--checkpoint-every", "3"], []], ids=["every 3", "default"])
def test_launch_starts_a_job_again(openmpi5: Launcher, every: list[str], whole: list[float], tmp_path: Path) -> None:
    """From the newest checkpoint, after a rank was killed; its curve is that of a training without a fault."""
    variables = {"FAULT": f"SIGKILL epoch 1 {tmp_path}", "PYTHONPATH": f"{INJECT}:{NUMPY_BACKEND}"}
    job = openmpi5.launch(2, ["--max-restarts", "2", *OPTIONS[:4], *every, "--epochs", "12"], tmp_path, variables)
    expected = ("killed by SIGKILL", "restart 1 of 2, with 2 ranks", f"resumed after epoch {'3' if every else ''}")
    assert [words in job.check().console for words in (*expected, "restart 2")] == [True] * 3 + [False]
    np.testing.assert_allclose(job.result["loss"], whole, rtol=0, atol=1e-10)


def test_a_program_is_told_that_it_was_started_again(tmp_path: Path) -> None:
    """As under torchrun, with any exit code of its own; and no more often than it may be. Here with no mpirun."""
    (tmp_path / "again.py").write_text(
        "import os, sys\ncount = os.environ['TORCHELASTIC_RESTART_COUNT']\nopen('seen.' + count, 'w').close()\n"
        "sys.exit(2 if int(count) < 9 else 0)\n"
    )
    job = unilaunch(["launch", "-n", "2", "--launcher", "direct", "--max-restarts", "2", "again.py"], tmp_path)
    assert sorted(path.name for path in tmp_path.glob("seen.*")) == ["seen.0", "seen.1", "seen.2"]
    assert (job.returncode, job.report["exit_code"]) == (2, 2)


@pytest.mark.parametrize(("forbidden", "mode"), [("epoch-000012.safetensors", 0), (".", 0o300)])
def test_what_cannot_be_read_stops_the_job(openmpi5: Launcher, forbidden: str, mode: int, trained: Path) -> None:
    """One line with the file and the cause, no epoch is trained, and every checkpoint is there afterwards."""
    folder = trained / "log_output" / "checkpoints"
    before = {path.name: path.read_bytes() for path in folder.glob("epoch-*")}
    (folder / forbidden).chmod(mode)
    start = [*UNPRIVILEGED, str(openmpi5.path), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
    arguments = ["run", *OPTIONS, "--epochs", "15", "--resume", "--keep-checkpoints", "1"]
    job = finish([*start, "-m", "unilaunch", *arguments], trained, None)
    (folder / forbidden).chmod(0o700)
    assert f"{Path('log_output/checkpoints', forbidden)} cannot be read: Permission denied" in job.refusal()
    assert {path.name: path.read_bytes() for path in folder.glob("epoch-*")} == before


@pytest.mark.parametrize(("arguments", "words"), [
    ([], "--checkpoint-dir models: it holds checkpoints: --resume, or another folder"),
    (["--resume"], "--resume: models holds best.safetensors alone, from which no training goes on"),
    (["--resume", "--seed", "3"], "models/best.safetensors is of another training (its seed is 0, not 3)"),
])  # fmt: skip
def test_another_trainings_best_model_stays(arguments: list[str], words: str, trained: Path) -> None:
    """Though nothing else is in the folder, or, the last time, only a damaged checkpoint."""
    folder, models = trained / "log_output" / "checkpoints", trained / "models"
    models.mkdir()
    for name in ("best.safetensors", "final.safetensors")[: 1 + ("--seed" in arguments)]:
        (folder / name).rename(models / name)
        if name != "best.safetensors":
            os.truncate(models / name, 100)
    before = (models / "best.safetensors").read_bytes()
    job = unilaunch(["run", *OPTIONS, "--epochs", "12", "--checkpoint-dir", "models", *arguments], trained)
    assert (job.returncode, words in job.console) == (2, True), job.console
    assert (models / "best.safetensors").read_bytes() == before


def test_patience_counts_as_in_a_single_run(tmp_path: Path) -> None:
    """Though the run before ended between two evaluations, or evaluated at another interval; with the same bits."""
    arguments = ["run", "--data-dir", "data", "--lr", "0.5", "--patience", "2", "--eval-every", "4", "--epochs"]
    single = unilaunch([*arguments, "200"], tmp_path).check().result
    whole = single["epochs"]
    assert whole < 200
    for before, every in ((whole - 2, 4), (whole - 4, whole)):
        unilaunch([*arguments, str(before)], tmp_path).check()
        again = unilaunch([*arguments, "200", "--eval-every", str(every), "--resume"], tmp_path).check()
        assert f"resumed after epoch {before}" in again.console
        assert (again.result["epochs"], again.result["loss"]) == (whole, single["loss"])
        assert {*range(4, whole + 1, 4)} <= {one["epoch"] for one in again.result["evaluations"]}
