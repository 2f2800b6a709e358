"""A training that ends early and goes on: elsewhere, on the other framework, after a kill."""

import os
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from jobs.mpirun import BACKEND, NUMPY, NUMPY_BACKEND, UNPRIVILEGED, Finished, Launcher, finish, unilaunch

INJECT = Path(__file__).parents[1] / "faults" / "inject"
pytestmark = [pytest.mark.usefixtures("by_numpy"), pytest.mark.xdist_group("checkpoints")]
BY_NUMPY = NUMPY | {BACKEND: "numpy"}
OPTIONS = ["--data-dir", "data", "--precision", "float64", "--checkpoint-every", "3"]
BY_TORCH = ["run", *OPTIONS, "--epochs", "12", "--keep-checkpoints", "9", "--backend", "torch"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a training that nothing interrupts."""
    job = unilaunch(["run", *OPTIONS[:4], "--epochs", "12"], tmp_path_factory.mktemp("whole"), BY_NUMPY).check()
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


@pytest.fixture(scope="module")
def by_torch(openmpi5: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Twelve epochs of PyTorch on two ranks, which nothing interrupts."""
    return openmpi5.unilaunch(2, BY_TORCH, tmp_path_factory.mktemp("torch")).check()


@pytest.fixture
def killed(by_torch: Finished, tmp_path: Path) -> None:
    """A copy of its folder, as a kill after the sixth epoch leaves it."""
    copytree(by_torch.folder, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "log_output" / "checkpoints").glob("*.safetensors"):
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
    assert job.result["loss"] == by_torch.result["loss"]
    told = unilaunch([*BY_TORCH, "--resume", "--backend", "numpy"], tmp_path).check()
    assert told.result["loss"] == by_torch.result["loss"]
    assert "nothing is left to train" in told.console


@pytest.mark.parametrize("every", [["--checkpoint-every", "3"], []], ids=["every 3", "default"])
def test_launch_starts_a_job_again(openmpi5: Launcher, every: list[str], whole: list[float], tmp_path: Path) -> None:
    """From the newest checkpoint, after a rank was killed; its curve is that of a training without a fault."""
    variables = {"FAULT": f"SIGKILL epoch 1 {tmp_path}", "PYTHONPATH": f"{INJECT}:{NUMPY_BACKEND}"}
    job = openmpi5.launch(2, ["--max-restarts", "2", *OPTIONS[:4], *every, "--epochs", "12"], tmp_path, variables)
    assert "killed by SIGKILL" in job.check().console
    assert "restart 1 of 2, with 2 ranks" in job.console
    assert "restart 2" not in job.console
    assert f"resumed after epoch {'3' if every else ''}" in job.console
    np.testing.assert_allclose(job.result["loss"], whole, rtol=0, atol=1e-10)


def test_a_program_is_told_that_it_was_started_again(tmp_path: Path) -> None:
    """As under torchrun, with any exit code of its own; and no more often than it may be. Here with no mpirun."""
    (tmp_path / "again.py").write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "count = os.environ['TORCHELASTIC_RESTART_COUNT']\nPath('seen.' + count).touch()\n"
        "sys.exit(2 if int(count) < 9 else 0)\n"
    )
    job = unilaunch(["launch", "-n", "2", "--launcher", "direct", "--max-restarts", "2", "again.py"], tmp_path)
    assert sorted(path.name for path in tmp_path.glob("seen.*")) == ["seen.0", "seen.1", "seen.2"]
    assert (job.returncode, job.report["exit_code"]) == (2, 2)


def test_the_end_of_a_job_that_cannot_be_restarted_is_kept(openmpi5: Launcher, tmp_path: Path) -> None:
    """Its exit code and its report are those of the failure; a line says why there is no restart."""
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    (tmp_path / "fails.py").write_text("from pathlib import Path\nPath('hosts').unlink(True)\nraise SystemExit(3)\n")
    job = openmpi5.launch(2, ["--max-restarts", "1", "--hostfile", "hosts", "fails.py"], tmp_path)
    assert "no restart: --hostfile hosts: no such file" in job.refusals()[-1]
    assert (job.returncode, job.report["exit_code"]) == (3, 3)


@pytest.mark.parametrize(("forbidden", "mode"), [("epoch-000006.safetensors", 0), (".", 0o300)])
def test_checkpoints_that_cannot_be_read_stop_the_job(
    openmpi5: Launcher, forbidden: str, mode: int, trained: Path
) -> None:
    """One line with the file and the cause, no epoch is trained, and every checkpoint is there afterwards."""
    folder = trained / "log_output" / "checkpoints"
    before = {path.name: path.read_bytes() for path in folder.glob("epoch-*")}
    (folder / forbidden).chmod(mode)
    start = [*UNPRIVILEGED, str(openmpi5.path), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
    arguments = ["run", *OPTIONS, "--epochs", "9", "--resume", "--keep-checkpoints", "1"]
    job = finish([*start, "-m", "unilaunch", *arguments], trained, None)
    (folder / forbidden).chmod(0o700)
    assert f"{Path('log_output/checkpoints', forbidden)} cannot be read: Permission denied" in job.refusal()
    assert [job.failure(rank)["exit_code"] for rank in range(2)] == [2, 2]
    assert not list(job.output.glob("rank.*/epochs.jsonl"))
    assert {path.name: path.read_bytes() for path in folder.glob("epoch-*")} == before


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
    job = unilaunch(["run", *OPTIONS, "--epochs", "6", "--checkpoint-dir", "models", *arguments], trained)
    assert words in job.refusal()
    assert best.read_bytes() == before


@pytest.mark.parametrize("seed", ["3", "0"], ids=["another training", "the same"])
def test_a_best_model_beside_a_damaged_checkpoint(seed: str, trained: Path) -> None:
    """Another training's stays; of the same training it is made again."""
    folder, models = trained / "log_output" / "checkpoints", trained / "models"
    models.mkdir()
    for name in ("best.safetensors", "final.safetensors"):
        (folder / name).rename(models / name)
    os.truncate(models / "final.safetensors", 100)
    before = (models / "best.safetensors").read_bytes()
    options = ["--epochs", "6", "--seed", seed, "--checkpoint-dir", "models", "--resume"]
    job = unilaunch(["run", *OPTIONS, *options], trained)
    assert "models/final.safetensors is damaged" in job.console
    assert job.returncode == (0 if seed == "0" else 2), job.console
    if seed == "3":
        assert "models/best.safetensors is of another training (its seed is 0, not 3)" in job.console
        assert (models / "best.safetensors").read_bytes() == before


def test_a_folder_of_checkpoints_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    """Before an epoch is trained; with what trains without one."""
    job = unilaunch(["run", "--data-dir", "data", "--checkpoint-dir", "/proc/nope"], tmp_path)
    assert "--checkpoint-dir /proc/nope: cannot be written" in (line := job.refusal())
    assert "--no-save-model" in line
    assert not list(job.output.glob("rank.*/epochs.jsonl"))


def test_a_changed_graph_is_another_training(tmp_path: Path) -> None:
    """Under the same name it is refused in one line; what it was goes on, under any name."""
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {"edge_index": draw.integers(0, 90, (2, 300)), "y": np.arange(90) % 3}
    x = draw.random((90, 6), dtype=np.float32)
    np.savez(tmp_path / "moved.npz", x=x, **arrays)
    arguments = ["run", *OPTIONS, "--resume", "--dataset"]
    np.savez(tmp_path / "graph.npz", x=x, **arrays)
    unilaunch([*arguments, "graph.npz", "--epochs", "3"], tmp_path).check()
    np.savez(tmp_path / "graph.npz", x=x + 1, **arrays)
    job = unilaunch([*arguments, "graph.npz", "--epochs", "6"], tmp_path)
    assert "the data set graph.npz has another content" in job.refusal()
    again = unilaunch([*arguments, "moved.npz", "--epochs", "6"], tmp_path).check()
    assert "resumed after epoch 3" in again.console


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
    assert [again.result[name] == result[name] for name in ("loss", "evaluations")] == [True, True]
    measured = ("seconds_per_epoch", "communication_seconds", "bytes_per_epoch")
    assert {one[name] for one in (again.result, *again.result["ranks"]) for name in measured} == {None}


def test_patience_counts_as_in_a_single_run(tmp_path: Path) -> None:
    """Though the run before ended between two evaluations, with one of its own, or evaluated at another interval.

    In float32 too its losses are the same bits, and what the run before has evaluated is in the result.
    """
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


def test_resumed_runs_keep_as_many_checkpoints_as_one(tmp_path: Path) -> None:
    """Those of the runs before count: the newest are kept."""
    for epochs in ("9", "15"):
        options = [*OPTIONS, "--keep-checkpoints", "3", "--epochs", epochs, "--resume", "--checkpoint-dir", "kept"]
        unilaunch(["run", *options], tmp_path).check()
    kept = sorted(path.name for path in tmp_path.glob("kept/epoch-*"))
    assert kept == [f"epoch-{epoch:06d}.safetensors" for epoch in (9, 12, 15)]
