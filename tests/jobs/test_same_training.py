"""The same training everywhere: on any number of parts, on both frameworks, and in dense matrices on one process."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from jobs.mpirun import Finished, Launcher
from reference import Reference, train_reference
from unilaunch_gcn.datasets import open_dataset

PROGRAM = str(Path(__file__).parent / "programs" / "dump_training.py")
SEED = 3


@cache
def _reference(data: Path) -> Reference:
    graph = open_dataset("cora", data, None, 0, normalize_features=True).load()
    return train_reference(graph, [1433, 16, 7], epochs=200, dropout=0.5, seed=SEED)


def _train(
    launcher: Launcher, ranks: int, folder: Path, arguments: list[str]
) -> tuple[Finished, NDArray[np.float64], list[NDArray[np.float64]]]:
    """Return the job, its logits in the order of global ids, and rank 0's weights."""
    job = launcher.run(ranks, [PROGRAM, "dump", "run", "--seed", str(SEED), *arguments], folder).check()
    dumps = [dict(np.load(folder / "dump" / f"rank.{rank}.npz")) for rank in range(ranks)]
    owned = np.concatenate([dump["owned"] for dump in dumps])
    logits = np.concatenate([dump["logits"] for dump in dumps])[np.argsort(owned)]
    for dump in dumps[1:]:
        np.testing.assert_array_equal(dump["weight_0"], dumps[0]["weight_0"])
    return job, logits, [dumps[0][name] for name in sorted(dumps[0]) if name.startswith("weight_")]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_float64_equals_the_dense_reference(
    openmpi5: Launcher, backend: str, ranks: int, cora: Path, tmp_path: Path
) -> None:
    """Cora, 200 epochs with dropout and L2: losses, logits and weights to 1e-10."""
    arguments = ["--dataset", "cora", "--data-dir", str(cora), "--backend", backend, "--precision", "float64"]
    job, logits, weights = _train(openmpi5, ranks, tmp_path, arguments)
    expected = _reference(cora)
    np.testing.assert_allclose(job.result["loss"], expected.losses, rtol=0, atol=1e-10)
    np.testing.assert_allclose(logits, expected.logits, rtol=0, atol=1e-10)
    for weight, expected_weight in zip(weights, expected.weights, strict=True):
        np.testing.assert_allclose(weight, expected_weight, rtol=0, atol=1e-10)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_float32_has_the_reference_curve(
    openmpi5: Launcher, backend: str, ranks: int, cora: Path, tmp_path: Path
) -> None:
    """Cora, 200 epochs with dropout and L2: the loss curve to 1e-5, whatever the parts and the framework."""
    arguments = ["run", "--dataset", "cora", "--data-dir", str(cora), "--backend", backend, "--seed", str(SEED)]
    job = openmpi5.unilaunch(ranks, arguments, tmp_path).check()
    np.testing.assert_allclose(job.result["loss"], _reference(cora).losses, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        ["--layers", "3", "--hidden", "8", "--dropout", "0"],
        ["--layers", "3", "--hidden", "32", "--dropout", "0.3"],
        ["--layers", "1"],
    ],
    ids=["three layers, aggregated once", "three layers, wide last but one", "one layer"],
)
def test_other_shapes_equal_the_dense_reference(
    openmpi5: Launcher, backend: str, options: list[str], cora: Path, tmp_path: Path
) -> None:
    """Every order of a layer's products is exact, forward and backward."""
    chosen = dict(zip(options[::2], options[1::2], strict=True))
    layers, hidden = int(chosen["--layers"]), int(chosen.get("--hidden", "16"))
    graph = open_dataset("cora", cora, None, 0, normalize_features=True).load()
    widths = [1433, *[hidden] * (layers - 1), 7]
    expected = train_reference(graph, widths, epochs=15, dropout=float(chosen.get("--dropout", "0.5")), seed=SEED)
    arguments = ["--dataset", "cora", "--data-dir", str(cora), "--backend", backend, "--precision", "float64"]
    job, logits, _ = _train(openmpi5, 3, tmp_path, [*arguments, "--epochs", "15", *options])
    np.testing.assert_allclose(job.result["loss"], expected.losses, rtol=0, atol=1e-10)
    np.testing.assert_allclose(logits, expected.logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("ranks", [2, 4])
def test_repeated_run_is_bit_identical(
    launcher: Launcher, backend: str, ranks: int, cora: Path, tmp_path: Path
) -> None:
    """The same seed and parts give the same bits, in float32 too."""
    arguments = ["run", "--dataset", "cora", "--data-dir", str(cora), "--backend", backend, "--epochs", "60"]
    first, second = (launcher.unilaunch(ranks, arguments, tmp_path).check().result["loss"] for _ in range(2))
    assert first == second
