"""The tutorial's MNIST training under a real mpirun: past 90 % after one epoch, and the same on both frameworks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.mpirun import Launcher

pytestmark = [pytest.mark.xdist_group("MNIST"), pytest.mark.timeout(900)]

FILES = Path(__file__).parents[2].parent / "shared" / "datasets" / "mnist"


@pytest.fixture(scope="module")
def mnist() -> Path:
    """The folder of the real files."""
    if not FILES.is_dir():
        pytest.skip(f"no MNIST files at {FILES}")
    return FILES


def _train(launcher: Launcher, ranks: int, folder: Path, arguments: list[str], **more: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return launcher.unilaunch(ranks, ["run", "mnist", *arguments], folder, deadline=300, **more).check().result


@pytest.fixture(scope="module")
def two_epochs(openmpi5: Launcher, mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Two epochs on two ranks, on each framework."""
    return {
        backend: _train(
            openmpi5,
            2,
            tmp_path_factory.mktemp(backend),
            ["--backend", backend, "--data-dir", str(mnist), "--epochs", "2"],
        )
        for backend in ("torch", "mindspore")
    }


def test_one_epoch_with_the_defaults_passes_90_percent(
    openmpi5: Launcher, mnist: Path, two_epochs: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """They are the tutorial's; and an epoch has the same bits in a longer run."""
    result = _train(openmpi5, 2, tmp_path, ["--data-dir", str(mnist)])
    assert result["test_accuracy"] > 0.90
    assert result["test_accuracies"] == [result["test_accuracy"]]
    assert (result["num_train"], result["num_test"], result["batch_size"], result["epochs"]) == (60_000, 10_000, 32, 1)
    assert len(result["step_loss"]) == 94  # every tenth of 938
    assert result["step_loss"] == two_epochs["torch"]["step_loss"][:94]


def test_one_rank_with_the_global_batch_is_the_same_training(
    openmpi5: Launcher, backend: str, mnist: Path, two_epochs: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """The first of the two epochs, every loss to 1e-5."""
    two = two_epochs[backend]
    one = _train(openmpi5, 1, tmp_path, ["--backend", backend, "--data-dir", str(mnist), "--batch-size", "64"])
    np.testing.assert_allclose(one["step_loss"], two["step_loss"][:94], rtol=0, atol=1e-5)
    np.testing.assert_allclose(one["loss"], two["loss"][:1], rtol=0, atol=1e-5)
    assert two["test_accuracies"][0] > 0.90
    assert abs(one["test_accuracy"] - two["test_accuracies"][0]) <= 1e-3


def test_the_frameworks_have_one_curve(two_epochs: dict[str, dict[str, Any]]) -> None:
    """Two epochs on two ranks: every loss to 1e-5."""
    torch, mindspore = two_epochs["torch"], two_epochs["mindspore"]
    np.testing.assert_allclose(mindspore["step_loss"], torch["step_loss"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(mindspore["loss"], torch["loss"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(mindspore["test_accuracies"], torch["test_accuracies"], rtol=0, atol=1e-3)


def test_seven_ranks_have_equally_many_steps(openmpi5: Launcher, backend: str, mnist: Path, tmp_path: Path) -> None:
    """A batch that does not divide the shards, and shards that the images do not go round on."""
    arguments = ["--backend", backend, "--data-dir", str(mnist), "--batch-size", "999"]
    result = _train(openmpi5, 7, tmp_path, arguments)
    assert len(result["step_loss"]) == 1  # 9 steps
    assert 0.5 < result["test_accuracy"] < 0.9


def test_the_tutorials_data_path(openmpi5: Launcher, mnist: Path, tmp_path: Path) -> None:
    """DATA_PATH=./MNIST_Data/train/ finds the test files beside it; --data-dir wins over it."""
    for split, prefix in (("train", "train"), ("test", "t10k")):
        (tmp_path / "MNIST_Data" / split).mkdir(parents=True)
        for file in mnist.glob(f"{prefix}-*"):
            (tmp_path / "MNIST_Data" / split / file.name).symlink_to(file)
    arguments = ["--backend", "torch", "--batch-size", "512"]
    tutorial = {"DATA_PATH": "./MNIST_Data/train/"}
    assert _train(openmpi5, 2, tmp_path, arguments, variables=tutorial)["num_test"] == 10_000
    chosen = [*arguments, "--data-dir", str(mnist)]
    assert _train(openmpi5, 2, tmp_path, chosen, variables={"DATA_PATH": "nowhere"})["num_test"] == 10_000


def test_missing_files_are_refused_in_one_line(openmpi5: Launcher, backend: str, tmp_path: Path) -> None:
    """With where they were looked for, before the framework is imported."""
    job = openmpi5.unilaunch(2, ["run", "mnist", "--backend", backend, "--data-dir", "data"], tmp_path)
    assert job.returncode == 2
    (refusal,) = job.refusals()
    for word in ("no train-images-idx3-ubyte", "data/mnist", "data/train", "https://", "--data-dir"):
        assert word in refusal
    assert "Traceback" not in job.console


def test_a_diverged_training_fails(openmpi5: Launcher, backend: str, mnist: Path, tmp_path: Path) -> None:
    """One line with the epoch and the likely cause, exit code 1, and no result that holds NaN."""
    arguments = [
        "run",
        "mnist",
        "--backend",
        backend,
        "--data-dir",
        str(mnist),
        "--batch-size",
        "5000",
        "--lr",
        "1e300",
    ]
    job = openmpi5.unilaunch(2, arguments, tmp_path)
    assert job.returncode == 1
    (line,) = job.refusals()
    assert "epoch 1: the" in line
    assert "not a finite number: the training has diverged, probably because --lr 1e+300 is too high" in line
    assert "Warning" not in job.console
    assert not (job.output / "result.json").exists()
