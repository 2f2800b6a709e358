"""The tutorial's MNIST training under a real mpirun: past 90 % after one epoch, and the same on both frameworks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.idx import first_images
from jobs.mpirun import Launcher

pytestmark = pytest.mark.xdist_group("MNIST")

FILES = Path(__file__).parents[2].parent / "shared" / "datasets" / "mnist"
Result = dict[str, Any]


@pytest.fixture(scope="module")
def mnist() -> Path:
    """The folder of the real files."""
    if not FILES.is_dir():
        pytest.skip(f"no MNIST files at {FILES}")
    return FILES


@pytest.fixture(scope="module")
def few(mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the first 6,001 training and 1,001 test images, as the tutorials have them."""
    folder = tmp_path_factory.mktemp("few") / "MNIST_Data"
    first_images(mnist, folder, {"train": 6001, "test": 1001})
    return folder


def _train(launcher: Launcher, ranks: int, folder: Path, arguments: list[str], **more: Any) -> Result:
    return launcher.unilaunch(ranks, ["run", "mnist", *arguments], folder, **more).check().result


@pytest.fixture(scope="module")
def even(mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with as many training images as two ranks divide evenly: each has the batches of one rank."""
    folder = tmp_path_factory.mktemp("even")
    first_images(mnist, folder, {"train": 6000, "test": 1000})
    return folder


@pytest.fixture(scope="module")
def curve(openmpi5: Launcher, even: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """An epoch on two ranks; torch is the default."""
    return _train(openmpi5, 2, tmp_path_factory.mktemp("torch"), ["--data-dir", str(even)])


def test_one_epoch_with_the_defaults_passes_90_percent(openmpi5: Launcher, mnist: Path, tmp_path: Path) -> None:
    """They are the tutorial's, as is the epoch, on two ranks."""
    defaults = _train(openmpi5, 2, tmp_path, ["--data-dir", str(mnist)])
    assert defaults["backend"] == "torch"
    assert defaults["test_accuracy"] > 0.90
    sizes = ("num_train", "num_test", "batch_size", "epochs")
    assert [defaults[name] for name in sizes] == [60_000, 10_000, 32, 1]
    assert len(defaults["step_loss"]) == 94  # every tenth of 938


@pytest.mark.parametrize(("backend", "ranks", "batch"), [("mindspore", 2, "32"), ("torch", 1, "64")])
def test_frameworks_and_ranks_have_one_curve(
    openmpi5: Launcher, even: Path, curve: Result, backend: str, ranks: int, batch: str, tmp_path: Path
) -> None:
    """With the same global batch: every loss to 1e-5. --data-dir wins over DATA_PATH."""
    arguments = ["--backend", backend, "--data-dir", str(even), "--batch-size", batch]
    other = _train(openmpi5, ranks, tmp_path, arguments, variables={"DATA_PATH": "nowhere"})
    np.testing.assert_allclose(other["step_loss"], curve["step_loss"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(other["loss"], curve["loss"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(other["test_accuracies"], curve["test_accuracies"], rtol=0, atol=1e-3)


def test_an_epoch_has_the_same_bits_in_a_longer_run(openmpi5: Launcher, few: Path, tmp_path: Path) -> None:
    """The images do not go round: only some ranks have one for the last step. DATA_PATH finds the test files too."""
    (tmp_path / "MNIST_Data").symlink_to(few)
    tutorial = {"DATA_PATH": "./MNIST_Data/train/"}
    one, two = (
        _train(openmpi5, 3, tmp_path, ["--batch-size", "100", "--epochs", epochs], variables=tutorial)
        for epochs in ("1", "2")
    )
    assert (one["num_train"], one["num_test"], len(one["step_loss"])) == (6001, 1001, 3)
    assert one["test_accuracy"] > 0.5
    assert one["step_loss"] == two["step_loss"][:3]
    assert [one[name] for name in ("loss", "test_accuracies")] == [two["loss"][:1], two["test_accuracies"][:1]]


def test_missing_files_are_refused_in_one_line(openmpi5: Launcher, tmp_path: Path) -> None:
    """With where they were looked for, before the framework is imported."""
    job = openmpi5.unilaunch(2, ["run", "mnist", "--backend", "torch", "--data-dir", "data"], tmp_path)
    refusal = job.refusal()
    for word in ("no train-images-idx3-ubyte", "data/mnist", "data/train", "https://", "--data-dir"):
        assert word in refusal
    assert "framework import" not in (job.output / "rank.0" / "events.jsonl").read_text()


def test_a_diverged_training_fails(openmpi5: Launcher, few: Path, tmp_path: Path) -> None:
    """One line with the epoch and the likely cause, exit code 1, and no result that holds NaN."""
    arguments = ["--data-dir", str(few), "--batch-size", "500", "--lr", "1e300"]
    job = openmpi5.unilaunch(2, ["run", "mnist", *arguments], tmp_path)
    assert job.returncode == 1
    (line,) = job.refusals()
    assert [word in line for word in ("epoch 1: the", "not a finite number", "--lr 1e+300")] == [True] * 3
    assert "Warning" not in job.console
    assert not (job.output / "result.json").exists()
