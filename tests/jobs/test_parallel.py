"""Ranks that divide columns in place of nodes: the same training."""

from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher, alone

OPTIONS = ["--epochs", "12", "--precision", "float64", "--data-dir", "data", "--hidden", "7", "--layers", "3"]


@pytest.mark.parametrize("options", [
    ["--use-gdc"], ["--conv", "sage", "--bias", "--layer-norm", "--dropout", "0"],
])  # fmt: skip
def test_columns_give_the_curve_of_nodes(openmpi5: Launcher, backend: str, options: list[str], tmp_path: Path) -> None:
    """Three ranks, seven hidden columns and seven classes: nothing divides evenly, and the loss is the same."""
    one = alone(["-m", "unilaunch", "run", *OPTIONS, *options, "--backend", backend], tmp_path).check()
    arguments = ["run", *OPTIONS, *options, "--backend", backend, "--parallel", "tensor"]
    three = openmpi5.unilaunch(3, arguments, tmp_path).check()
    np.testing.assert_allclose(three.result["loss"], one.result["loss"], rtol=0, atol=1e-10)
    assert three.result["test_accuracy"] == one.result["test_accuracy"]
    assert three.result["bytes_per_epoch"] > 0
    folder = next((tmp_path / "data" / "partitions").glob("sbm-3-*"))
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
