"""The tutorial's MNIST training under a real mpirun: past 90 % after one epoch, and the same on both frameworks."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.idx import first_images
from jobs.mpirun import Launcher

pytestmark = pytest.mark.xdist_group("MNIST")

FILES = Path(__file__).parents[2].parent / "shared" / "datasets" / "mnist"
#: Two epochs on two ranks of 512 images, or on one of 1,024.
TWO_EPOCHS = ["--epochs", "2", "--batch-size"]

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
    folder.mkdir(exist_ok=True)
    return launcher.unilaunch(ranks, ["run", "mnist", *arguments], folder, **more).check().result


@pytest.fixture(scope="module")
def defaults(openmpi5: Launcher, mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """The tutorial's epoch on two ranks, on each framework; torch is the default."""
    chosen: dict[str, list[str]] = {"torch": [], "mindspore": ["--backend", "mindspore"]}

    @cache
    def train(backend: str) -> Result:
        return _train(openmpi5, 2, tmp_path_factory.mktemp(backend), [*chosen[backend], "--data-dir", str(mnist)])

    return train


@pytest.fixture(scope="module")
def two_epochs(openmpi5: Launcher, mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Two epochs on two ranks, in torch."""
    arguments = ["--data-dir", str(mnist), *TWO_EPOCHS, "512"]
    return _train(openmpi5, 2, tmp_path_factory.mktemp("two"), arguments)


def test_one_epoch_with_the_defaults_passes_90_percent(backend: str, defaults: Callable[[str], Result]) -> None:
    """They are the tutorial's."""
    result = defaults(backend)
    assert result["backend"] == backend
    assert result["test_accuracy"] > 0.90
    assert result["test_accuracies"] == [result["test_accuracy"]]
    assert (result["num_train"], result["num_test"], result["batch_size"], result["epochs"]) == (60_000, 10_000, 32, 1)
    assert len(result["step_loss"]) == 94  # every tenth of 938


@pytest.mark.mindspore
def test_the_frameworks_have_one_curve(defaults: Callable[[str], Result]) -> None:
    """The tutorial's epoch on two ranks: every loss to 1e-5."""
    _same(defaults("mindspore"), defaults("torch"))


def test_one_rank_with_the_global_batch_is_the_same_training(
    openmpi5: Launcher, mnist: Path, defaults: Callable[[str], Result], tmp_path: Path
) -> None:
    """The tutorial's epoch, in torch: every loss to 1e-5."""
    one = _train(openmpi5, 1, tmp_path, ["--data-dir", str(mnist), "--batch-size", "64"])
    _same(one, defaults("torch"))


@pytest.mark.mindspore
def test_one_rank_of_mindspore_is_the_same_training(
    openmpi5: Launcher, mnist: Path, two_epochs: Result, tmp_path: Path
) -> None:
    """As two of torch, for two epochs: every loss to 1e-5."""
    arguments = ["--backend", "mindspore", "--data-dir", str(mnist), *TWO_EPOCHS, "1024"]
    one = _train(openmpi5, 1, tmp_path, arguments)
    assert one["backend"] == "mindspore"
    assert len(one["loss"]) == 2
    _same(one, two_epochs)


def _same(one: Result, other: Result) -> None:
    np.testing.assert_allclose(one["step_loss"], other["step_loss"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(one["loss"], other["loss"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(one["test_accuracies"], other["test_accuracies"], rtol=0, atol=1e-3)


def test_an_epoch_has_the_same_bits_in_a_longer_run(
    openmpi5: Launcher, mnist: Path, two_epochs: Result, tmp_path: Path
) -> None:
    """And --data-dir wins over DATA_PATH."""
    arguments = ["--data-dir", str(mnist), "--batch-size", "512"]
    result = _train(openmpi5, 2, tmp_path, arguments, variables={"DATA_PATH": "nowhere"})
    assert len(result["step_loss"]) == 6  # every tenth of 59
    assert result["step_loss"] == two_epochs["step_loss"][:6]
    assert result["loss"] == two_epochs["loss"][:1]
    assert result["test_accuracies"] == two_epochs["test_accuracies"][:1]


@pytest.mark.parametrize(("backend", "ranks", "steps"), [("torch", 3, 21), ("mindspore", 2, 31)])
def test_unequal_shards_have_equally_many_steps(
    openmpi5: Launcher, backend: str, ranks: int, steps: int, few: Path, tmp_path: Path
) -> None:
    """The images do not go round: only some ranks have one for the last step. DATA_PATH finds the test files too."""
    (tmp_path / "MNIST_Data").symlink_to(few)
    tutorial = {"DATA_PATH": "./MNIST_Data/train/"}
    arguments = ["--backend", backend, "--batch-size", "100"]
    result = _train(openmpi5, ranks, tmp_path, arguments, variables=tutorial)
    assert (result["num_train"], result["num_test"]) == (6001, 1001)
    assert len(result["step_loss"]) == -(-steps // 10)
    assert 0.5 < result["test_accuracy"] < 0.9


def test_missing_files_are_refused_in_one_line(openmpi5: Launcher, tmp_path: Path) -> None:
    """With where they were looked for, before the framework is imported."""
    job = openmpi5.unilaunch(2, ["run", "mnist", "--backend", "torch", "--data-dir", "data"], tmp_path)
    assert job.returncode == 2
    (refusal,) = job.refusals()
    for word in ("no train-images-idx3-ubyte", "data/mnist", "data/train", "https://", "--data-dir"):
        assert word in refusal
    assert "Traceback" not in job.console
    assert "framework import" not in (job.output / "rank.0" / "events.jsonl").read_text()


def test_a_diverged_training_fails(openmpi5: Launcher, backend: str, few: Path, tmp_path: Path) -> None:
    """One line with the epoch and the likely cause, exit code 1, and no result that holds NaN."""
    arguments = ["--backend", backend, "--data-dir", str(few), "--batch-size", "500", "--lr", "1e300"]
    job = openmpi5.unilaunch(2, ["run", "mnist", *arguments], tmp_path)
    assert job.returncode == 1
    (line,) = job.refusals()
    assert "epoch 1: the" in line
    assert "not a finite number: the training has diverged, probably because --lr 1e+300 is too high" in line
    assert "Warning" not in job.console
    assert not (job.output / "result.json").exists()
