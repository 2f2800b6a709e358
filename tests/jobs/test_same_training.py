"""The same training everywhere: on any number of parts, on both frameworks, and in plain matrices on one process."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher
from jobs.trained import Trained, train_cases
from reference import Reference, train_reference
from unilaunch_graph.data.sources import open_dataset

pytestmark = pytest.mark.xdist_group("same training")

SEED = 3
EPOCHS = 60
#: Both frameworks; on several ranks also the other shapes.
RANKS = [("torch", 1), ("torch", 3), ("mindspore", 2)]
SEVERAL = dict(RANKS)
SHAPES = {
    "three layers, aggregated once": ["--layers", "3", "--hidden", "8", "--dropout", "0"],
    "three layers, wide last but one": ["--layers", "3", "--hidden", "32", "--dropout", "0.3"],
    "one layer": ["--layers", "1"],
}
Train = Callable[[str, int], Mapping[str, Trained]]


@cache
def _reference(data: Path, epochs: int = EPOCHS, layers: int = 2, hidden: int = 16, dropout: float = 0.5) -> Reference:
    graph = open_dataset("cora", data, None, 0, normalize_features=True).load()
    widths = [1433, *[hidden] * (layers - 1), 7]
    return train_reference(graph, widths, epochs=epochs, dropout=dropout, seed=SEED)


@pytest.fixture(scope="module")
def train(openmpi5: Launcher, cora: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train Cora in float32, in float64 and, on several ranks, in other shapes: one start for a framework and ranks."""
    common = ["--dataset", "cora", "--data-dir", str(cora), "--seed", str(SEED), "--epochs", str(EPOCHS)]
    exact = [*common, "--precision", "float64"]

    @cache
    def train(backend: str, ranks: int) -> Mapping[str, Trained]:
        shapes = SHAPES if ranks > 1 else {}
        cases = {"float32": common, "float64": exact}
        cases |= {name: [*exact, "--epochs", "15", *options] for name, options in shapes.items()}
        return train_cases(openmpi5, backend, ranks, cases, tmp_path_factory.mktemp("same"))

    return train


def _check_exact(trained: Trained, expected: Reference) -> None:
    """Losses, logits and weights to 1e-10; every rank's weights are the same."""
    np.testing.assert_allclose(trained.result["loss"], expected.losses, rtol=0, atol=1e-10)
    np.testing.assert_allclose(trained.logits, expected.logits, rtol=0, atol=1e-10)
    for of_rank in trained.weights:
        for weight, first, expected_weight in zip(of_rank, trained.weights[0], expected.weights, strict=True):
            np.testing.assert_array_equal(weight, first)
            np.testing.assert_allclose(weight, expected_weight, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("backend", "ranks"), RANKS)
def test_float64_equals_the_reference(backend: str, ranks: int, train: Train, cora: Path) -> None:
    """Cora, with dropout and L2: losses, logits and weights to 1e-10."""
    _check_exact(train(backend, ranks)["float64"], _reference(cora))


@pytest.mark.parametrize(("backend", "ranks"), RANKS)
def test_float32_has_the_reference_curve(backend: str, ranks: int, train: Train, cora: Path) -> None:
    """Cora, with dropout and L2: the loss curve to 1e-5, whatever the parts and the framework."""
    np.testing.assert_allclose(
        train(backend, ranks)["float32"].result["loss"], _reference(cora).losses, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_other_shapes_equal_the_reference(backend: str, shape: str, train: Train, cora: Path) -> None:
    """Every order of a layer's products is exact, forward and backward."""
    chosen = dict(zip(SHAPES[shape][::2], SHAPES[shape][1::2], strict=True))
    expected = _reference(
        cora, 15, int(chosen["--layers"]), int(chosen.get("--hidden", "16")), float(chosen.get("--dropout", "0.5"))
    )
    _check_exact(train(backend, SEVERAL[backend])[shape], expected)


def test_repeated_run_is_bit_identical(
    openmpi5: Launcher, backend: str, train: Train, cora: Path, tmp_path: Path
) -> None:  # fmt: skip
    """The same seed and parts give the same bits, in float32 too; and if each rank imports the framework by itself."""
    arguments = ["run", "--dataset", "cora", "--data-dir", str(cora), "--seed", str(SEED), "--backend", backend]
    arguments += ["--epochs", "30"]
    again = openmpi5.unilaunch(SEVERAL[backend], arguments, tmp_path).check().result["loss"]
    assert again == train(backend, SEVERAL[backend])["float32"].result["loss"][:30]


@pytest.mark.usefixtures("by_numpy")
def test_the_sums_of_both_mpis_are_bit_identical(launcher: Launcher, tmp_path: Path) -> None:
    """On three ranks, whose numbers can be added in several orders."""
    arguments = ["run", "--data-dir", "data", "--epochs", "30"]
    first, second = (launcher.unilaunch(3, arguments, tmp_path).check().result["loss"] for _ in range(2))
    assert first == second
