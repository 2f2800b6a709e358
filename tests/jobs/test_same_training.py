"""The same training everywhere: on any number of parts, on both frameworks, and in plain matrices on one process."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher, unilaunch
from jobs.trained import Trained, train_cases
from reference import Reference, train_reference
from unilaunch_graph.data.sources import open_dataset

pytestmark = pytest.mark.xdist_group("same training")

SEED, EPOCHS = 3, 60
RANKS = {"torch": 3, "mindspore": 2}
#: Of each case: layers, hidden columns, dropout and epochs.
SHAPES: dict[str, tuple[int, int, float, int]] = {
    "float64": (2, 16, 0.5, EPOCHS),
    "three layers, aggregated once": (3, 8, 0.0, 15),
    "three layers, wide last but one": (3, 32, 0.3, 15),
}
Train = Callable[[str], Mapping[str, Trained]]


@cache
def _reference(data: Path, shape: str) -> Reference:
    graph = open_dataset("cora", data, None, 0, normalize_features=True).load()
    layers, hidden, dropout, epochs = SHAPES[shape]
    return train_reference(graph, [1433, *[hidden] * (layers - 1), 7], epochs=epochs, dropout=dropout, seed=SEED)


@pytest.fixture(scope="module")
def train(openmpi5: Launcher, cora: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train Cora in float32, in float64 and in other shapes: one start for a framework."""
    common = ["--dataset", "cora", "--data-dir", str(cora), "--seed", str(SEED)]
    cases = {"float32": [*common, "--epochs", str(EPOCHS)], "again": [*common, "--epochs", "30"]}
    for name, shape in SHAPES.items():
        options = zip(("--layers", "--hidden", "--dropout", "--epochs"), map(str, shape), strict=True)
        cases[name] = [*common, "--precision", "float64", *(word for option in options for word in option)]

    @cache
    def train(backend: str) -> Mapping[str, Trained]:
        return train_cases(openmpi5, backend, RANKS[backend], cases, tmp_path_factory.mktemp("same"))

    return train


@pytest.mark.parametrize("shape", SHAPES)
def test_float64_equals_the_reference(backend: str, shape: str, train: Train, cora: Path) -> None:
    """Cora, with dropout and L2, in every order of a layer's products: losses, logits and weights to 1e-10."""
    trained, expected = train(backend)[shape], _reference(cora, shape)
    np.testing.assert_allclose(trained.result["loss"], expected.losses, rtol=0, atol=1e-10)
    np.testing.assert_allclose(trained.logits, expected.logits, rtol=0, atol=1e-10)
    for of_rank in trained.weights:
        for weight, first, expected_weight in zip(of_rank, trained.weights[0], expected.weights, strict=True):
            np.testing.assert_array_equal(weight, first)
            np.testing.assert_allclose(weight, expected_weight, rtol=0, atol=1e-10)


def test_float32_has_the_reference_curve_and_is_repeatable(backend: str, train: Train, cora: Path) -> None:
    """To 1e-5, whatever the parts and the framework; the same seed and parts give the same bits."""
    losses = train(backend)["float32"].result["loss"]
    np.testing.assert_allclose(losses, _reference(cora, "float64").losses, rtol=0, atol=1e-5)
    assert train(backend)["again"].result["loss"] == losses[:30]


@pytest.mark.usefixtures("by_numpy")
def test_the_sums_of_both_mpis_are_bit_identical(launcher: Launcher, tmp_path: Path) -> None:
    """On three ranks, whose numbers can be added in several orders."""
    arguments = ["run", "--data-dir", "data", "--epochs", "30"]
    first, second = (launcher.unilaunch(3, arguments, tmp_path).check().result["loss"] for _ in range(2))
    assert first == second


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("more", ["--use-gdc", "--conv sage --bias --layer-norm --dropout 0"])
def test_columns_give_the_curve_of_nodes(openmpi5: Launcher, more: str, tmp_path: Path) -> None:
    """Three ranks, seven hidden columns and seven classes: nothing divides evenly, and the training is the same."""
    draw = np.random.default_rng(0)
    x = draw.random((140, 20), dtype=np.float32)
    np.savez(tmp_path / "seven.npz", edge_index=draw.integers(0, 140, (2, 500)), x=x, y=np.arange(140) % 7)
    words = (
        f"run --dataset seven.npz --data-dir data --precision float64 --epochs 6 --hidden 7 --layers 3 {more}".split()
    )
    one = openmpi5.unilaunch(1, words, tmp_path).check().result
    three = openmpi5.unilaunch(3, [*words, "--parallel", "tensor"], tmp_path).check().result
    np.testing.assert_allclose(three["loss"], one["loss"], rtol=0, atol=1e-10)
    assert three["test_accuracy"] == one["test_accuracy"]


@pytest.mark.parametrize(("edges", "words"), [("random", "by columns"), ("ring", "halo 8 ")])
def test_auto_takes_what_sends_less(edges: str, words: str, tmp_path: Path) -> None:
    """METIS on a graph with communities, columns on one without."""
    ring, draw = np.arange(300), np.random.default_rng(0)
    ends = draw.integers(0, 300, (2, 6000)) if edges == "random" else np.stack([ring, (ring + 1) % 300])
    np.savez(tmp_path / "graph.npz", edge_index=ends, x=np.eye(300, 4), y=np.arange(300) % 3)
    line = ["partition", "--dataset", "graph.npz", "--num-parts", "4", "--parallel", "auto", "--partition-dir", "parts"]
    assert words in unilaunch(line, tmp_path).check().stderr
