"""Ranks that divide columns in place of nodes: the same training."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher, alone
from jobs.trained import Trained, train_cases

pytestmark = pytest.mark.xdist_group("parallel")

COMMON = ["--epochs", "6", "--precision", "float64", "--hidden", "7", "--layers", "3"]
CASES = {"diffused": ["--use-gdc"], "other layers": ["--conv", "sage", "--bias", "--layer-norm", "--dropout", "0"]}
NODES = {name: [*COMMON, "--dataset", "seven.npz", *options] for name, options in CASES.items()}


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph of seven classes."""
    folder = tmp_path_factory.mktemp("parallel")
    (folder / "data").mkdir()
    rng = np.random.default_rng(0)
    y = np.arange(140) % 7
    x = rng.random((140, 20), dtype=np.float32)
    np.savez(folder / "seven.npz", edge_index=rng.integers(0, 140, (2, 500)), x=x, y=y)
    return folder


@pytest.fixture(scope="module")
def one(openmpi5: Launcher, seven: Path) -> Mapping[str, Trained]:
    """What one rank makes of it, in float64: both frameworks have to."""
    return train_cases(openmpi5, "torch", 1, NODES, seven)


def test_columns_give_the_curve_of_nodes(
    openmpi5: Launcher, backend: str, seven: Path, one: Mapping[str, Trained]
) -> None:
    """Three ranks, seven hidden columns and seven classes: nothing divides evenly, and the training is the same."""
    columns = {name: [*options, "--parallel", "tensor"] for name, options in NODES.items()}
    three = train_cases(openmpi5, backend, 3, columns, seven)
    for name in CASES:
        np.testing.assert_allclose(three[name].result["loss"], one[name].result["loss"], rtol=0, atol=1e-10)
        assert three[name].result["test_accuracy"] == one[name].result["test_accuracy"]
        assert three[name].result["bytes_per_epoch"] > 0
    folder = next((seven / "data" / "partitions").glob("seven*-3-*"))
    assert (folder / "adjacency" / "indices.npy").stat().st_size > 0


def test_auto_takes_what_sends_less(tmp_path: Path) -> None:
    """METIS on a graph with communities, columns on one without."""
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 300, (2, 6000))
    y = np.arange(300) % 3
    np.savez(tmp_path / "random.npz", edge_index=edges, x=rng.random((300, 4), dtype=np.float32), y=y)
    ring = np.arange(300)
    np.savez(tmp_path / "ring.npz", edge_index=np.stack([ring, (ring + 1) % 300]), x=np.eye(300, 4), y=y)
    for name, words in (("random", "by columns"), ("ring", "halo 8 ")):
        line = ["-m", "unilaunch", "partition", "--dataset", f"{name}.npz", "--num-parts", "4", "--parallel", "auto"]
        assert words in alone([*line, "--partition-dir", "parts"], tmp_path).check().stderr
