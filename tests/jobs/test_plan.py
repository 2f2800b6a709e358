"""`unilaunch plan`: what it says, against what a run then does."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.conftest import LAUNCHERS, find_launcher
from jobs.mpirun import Launcher, unilaunch

SPARSE_MASKS = {"train_mask": np.arange(239) < 6, "val_mask": np.arange(239) >= 200, "test_mask": np.zeros(239, bool)}
#: The number of parts, whether the graph has few training nodes, and the options of the model.
FORECASTS: dict[str, tuple[int, bool, list[str]]] = {
    "nodes": (2, False, ["--hidden", "12"]),
    "attention, directed": (3, False, ["--conv", "gat", "--heads", "2", "--hidden", "5"]),
    "columns that do not divide evenly": (4, False, ["--hidden", "7", "--parallel", "tensor"]),
    "means, directed": (3, True, ["--conv", "sage", "--layers", "3"]),
    "means, symmetric": (3, True, ["--conv", "sage", "--layers", "3", "--edges", "symmetric"]),
}


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("case", FORECASTS)
def test_predicted_bytes_are_counted_ones(openmpi5: Launcher, case: str, tmp_path: Path) -> None:
    """And the halo is the partition's."""
    ranks, few, options = FORECASTS[case]
    draw, masks = np.random.default_rng(0), SPARSE_MASKS if few else {}
    edges, x = draw.integers(0, 239, (2, 900)), draw.random((239, 9))
    np.savez(tmp_path / "graph.npz", edge_index=edges, x=x, y=np.arange(239) % 3, **masks)
    model = [word for word in options if word not in {"--parallel", "tensor"}]
    common = ["--dataset", "graph.npz", "--data-dir", "data"]
    plan = unilaunch(["plan", "--num-parts", str(ranks), "--json", *common, *model], tmp_path).check()
    result = openmpi5.unilaunch(ranks, ["run", "--epochs", "3", *common, *options], tmp_path).check().result
    forecast = json.loads(plan.stdout)
    if "tensor" in options:
        assert forecast["tensor_bytes"] == result["bytes_per_epoch"]
        return
    assert forecast["halo_bytes"] == result["bytes_per_epoch"]
    assert forecast["halo"] == sum(rank["halo"] for rank in result["ranks"])
    if case == "nodes":
        assert forecast["graph_seconds"] > 0
        assert forecast["partitioner"].startswith("pymetis ")


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
    assert "measured here" in unilaunch(["plan", *words], tmp_path).check().stdout
    assert re.findall(r"rank \d=localhost slot=\d", (tmp_path / "ranks").read_text()) == [
        "rank 0=localhost slot=0", "rank 1=localhost slot=1"
    ]  # fmt: skip
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
    assert forecast["peak_memory_bytes"] == sum(forecast["memory_bytes"].values())
    assert forecast["peak_memory_bytes"] == pytest.approx(job.result["ranks"][0]["peak_memory_bytes"], rel=0.15)


def test_a_run_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    """Before the graph is divided, in one line with what is needed, what is there and the way out."""
    job = unilaunch(["run", *_sparse(tmp_path, 200_000), "--hidden", "1000000"], tmp_path)
    assert re.search(r"its rank needs [\d,.]+ GB, and \S+ has [\d,.]+ GB: .*--force", job.refusal())
    assert not list(tmp_path.glob("data/partitions/*"))


@pytest.mark.parametrize(("arguments", "words"), [
    (["--num-parts", "65536"], "--num-parts 65536: expected numbers from 1 to 4,096"),
    (["--device", "h100"], "--device h100"),
    (["--residual"], "--residual --layers 2: only a layer between the first and the last adds its input"),
    (["--num-parts", "4", "--hosts", "a:2"], "--hosts a:2: 2 slots for 4 parts"),
    (["--rankfile", "x"], "--rankfile: which hosts?"),
    (["--partitioner", "scotch"], "no partitioner 'scotch'; installed: metis, mtkahypar"),
    (["--task", "regression"], "--task regression: the labels of sbm are int64"),
    (["--edges", "given"], "--edges given --conv gcn"),
])  # fmt: skip
def test_refusals(arguments: list[str], words: str, tmp_path: Path) -> None:
    assert words in unilaunch(["plan", *arguments], tmp_path).refusal()
    assert not list(tmp_path.iterdir())
