"""`unilaunch plan`: what it says, against what a run then does."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.conftest import LAUNCHERS, find_launcher
from jobs.mpirun import Launcher, unilaunch

FEW = {"train_mask": np.arange(239) < 6, "val_mask": np.arange(239) >= 200, "test_mask": np.zeros(239, bool)}


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize(("ranks", "masks", "options"), [
    (2, {}, "--hidden 12"),
    (3, {}, "--conv gat --heads 2 --hidden 5"),
    (4, {}, "--hidden 7 --parallel tensor"),  # columns that do not divide evenly
    (3, FEW, "--conv sage --layers 3"),
    (3, FEW, "--conv sage --layers 3 --edges symmetric"),
])  # fmt: skip
def test_predicted_bytes_are_counted_ones(
    openmpi5: Launcher, ranks: int, masks: dict[str, Any], options: str, tmp_path: Path
) -> None:
    """And the halo is the partition's."""
    draw = np.random.default_rng(0)
    edges, x = draw.integers(0, 239, (2, 900)), draw.random((239, 9))
    np.savez(tmp_path / "graph.npz", edge_index=edges, x=x, y=np.arange(239) % 3, **masks)
    common = ["--dataset", "graph.npz", "--data-dir", "data"]
    words = ["plan", "--num-parts", str(ranks), "--json", *common, *options.replace("--parallel tensor", "").split()]
    forecast = json.loads(unilaunch(words, tmp_path).check().stdout)
    result = openmpi5.unilaunch(ranks, ["run", "--epochs", "3", *common, *options.split()], tmp_path).check().result
    assert forecast["tensor_bytes" if "tensor" in options else "halo_bytes"] == result["bytes_per_epoch"]
    assert "tensor" in options or forecast["halo"] == sum(rank["halo"] for rank in result["ranks"])


def _sparse(folder: Path, columns: int) -> list[str]:
    """Write a graph of 300 nodes with one entry each in many sparse columns, and return its options."""
    draw = np.random.default_rng(0)
    x: dict[str, Any] = {"x_indptr": np.arange(301), "x_indices": draw.integers(0, columns, 300)}
    x |= {"x_data": np.ones(300, np.float32), "x_shape": np.array([300, columns])}
    np.savez(folder / "sparse.npz", edge_index=draw.integers(0, 300, (2, 900)), y=np.arange(300) % 3, **x)
    return ["--dataset", "sparse.npz", "--data-dir", "data"]


@pytest.mark.usefixtures("by_numpy")
def test_a_placement_is_a_rankfile_that_mpirun_takes(tmp_path: Path) -> None:
    """On this host's slots, each Open MPI; and a plot."""
    words = ["--num-parts", "2", "--hosts", "localhost:2", "--rankfile", "ranks", "--plot", "p.html"]
    unilaunch(["plan", *words], tmp_path).check()
    found = re.findall(r"rank \d=localhost slot=\d", (tmp_path / "ranks").read_text())
    assert found == ["rank 0=localhost slot=0", "rank 1=localhost slot=1"]
    assert (tmp_path / "p.html").stat().st_size > 1 << 20
    options = ["-H", "localhost:2", "--map-by", "rankfile:file=ranks", "--allow-run-as-root", "--epochs", "2"]
    for version in LAUNCHERS:
        line = ["launch", "-n", "2", "--mpirun", str(find_launcher(version).path), *options]
        assert unilaunch(line, tmp_path).check().result["world_size"] == 2


@pytest.mark.parametrize("backend", ["torch", "mindspore"])
def test_the_memory_of_a_plan_is_that_of_a_run(backend: str, tmp_path: Path) -> None:
    """With 15 million weights, within 15 %; `benchmarks/forecast.py` compares more."""
    options = [*_sparse(tmp_path, 30_000), "--hidden", "500", "--backend", backend]
    forecast = json.loads(unilaunch(["plan", "--num-parts", "1", "--json", *options], tmp_path).check().stdout)
    job = unilaunch(["run", "--epochs", "3", "--eval-every", "1", *options], tmp_path).check()
    assert forecast["peak_memory_bytes"] == pytest.approx(job.result["ranks"][0]["peak_memory_bytes"], rel=0.15)


def test_a_run_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    """Before the graph is divided, in one line with what is needed, what is there and the way out."""
    job = unilaunch(["run", *_sparse(tmp_path, 200_000), "--hidden", "1000000"], tmp_path)
    assert re.search(r"needs [\d,.]+ GB, and \S+ has [\d,.]+ GB: .*--force", job.refusal())
    assert not list(tmp_path.glob("data/partitions/*"))


@pytest.mark.parametrize(("arguments", "words"), [
    ("--num-parts 65536", "from 1 to 4,096"), ("--device h100", "--device h100"), ("--residual", "--layers 2"),
    ("--num-parts 4 --hosts a:2", "2 slots for 4 parts"), ("--rankfile x", "which hosts?"),
    ("--partitioner scotch", "metis, mtkahypar"), ("--task regression", "are int64"), ("--edges given", "--conv gcn"),
])  # fmt: skip
def test_refusals(arguments: str, words: str, tmp_path: Path) -> None:
    assert words in unilaunch(["plan", *arguments.split()], tmp_path).refusal()
    assert not list(tmp_path.iterdir())
