"""`unilaunch plan`: what it says, against what a run then does."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher, alone


@pytest.mark.usefixtures("by_numpy")  # the run; each framework sends as many: see test_traffic.py
@pytest.mark.parametrize(("backend", "numbers"), [("torch", "1,2"), ("mindspore", "2")])
def test_predicted_bytes_are_counted_ones(openmpi5: Launcher, backend: str, numbers: str, tmp_path: Path) -> None:
    """And the halo is the partition's; each framework's speed can be measured."""
    options = ["--data-dir", "data", "--hidden", "12"]
    line = ["-m", "unilaunch", "plan", "--num-parts", numbers, "--json", "--backend", backend, *options]
    plan = alone(line, tmp_path).check()
    job = openmpi5.unilaunch(2, ["run", "--epochs", "3", *options], tmp_path).check()
    *first, two = map(json.loads, plan.stdout.splitlines())
    assert [(one["num_parts"], one["halo_bytes"], one["partitioner"]) for one in first] == [(1, 0, "none")] * len(first)
    assert (len(first), two["num_parts"]) == (len(numbers) // 2, 2)
    manifest = json.loads(next(tmp_path.glob("data/partitions/*-2-*/part.1/manifest.json")).read_text())
    assert two["partitioner"] == manifest["partitioner"]
    assert manifest["partitioner"].startswith("pymetis ")
    assert two["halo_bytes"] == job.result["bytes_per_epoch"]
    assert two["halo"] == sum(rank["halo"] for rank in job.result["ranks"])
    assert two["graph_seconds"] > 0


@pytest.mark.usefixtures("by_numpy")
def test_predicted_bytes_of_attention_are_counted_ones(openmpi5: Launcher, tmp_path: Path) -> None:
    """On a directed graph, which attention takes as it is given; attention has no ranks that divide columns."""
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "graph.npz", edge_index=draw.integers(0, 300, (2, 1500)), x=np.eye(300), y=np.arange(300) % 3)
    options = ["--dataset", "graph.npz", "--data-dir", "data", "--conv", "gat", "--heads", "2", "--hidden", "5"]
    plan = alone(["-m", "unilaunch", "plan", "--num-parts", "3", "--json", *options], tmp_path).check()
    job = openmpi5.unilaunch(3, ["run", "--epochs", "3", *options], tmp_path).check()
    forecast = json.loads(plan.stdout)
    assert forecast["halo_bytes"] == job.result["bytes_per_epoch"]
    assert forecast["halo"] == sum(rank["halo"] for rank in job.result["ranks"])
    assert (forecast["tensor_bytes"], forecast["tensor_seconds"]) == (None, None)


@pytest.mark.usefixtures("by_numpy")
def test_predicted_bytes_of_columns_are_counted_ones(openmpi5: Launcher, tmp_path: Path) -> None:
    """Of ranks that divide columns, also where they divide neither the nodes nor the columns evenly."""
    draw = np.random.default_rng(0)
    edges, x = draw.integers(0, 239, (2, 900)), draw.random((239, 9))
    np.savez(tmp_path / "graph.npz", edge_index=edges, x=x, y=np.arange(239) % 3)
    options = ["--dataset", "graph.npz", "--data-dir", "data", "--hidden", "7"]
    plan = alone(["-m", "unilaunch", "plan", "--num-parts", "4", "--json", *options], tmp_path).check()
    job = openmpi5.unilaunch(4, ["run", "--epochs", "2", "--parallel", "tensor", *options], tmp_path).check()
    assert json.loads(plan.stdout)["tensor_bytes"] == job.result["bytes_per_epoch"]


@pytest.mark.usefixtures("by_numpy")
def test_predicted_bytes_of_directed_means_are_counted_ones(openmpi5: Launcher, tmp_path: Path) -> None:
    """A directed graph of sage: no row is left out of an epoch; with `--edges symmetric` some are."""
    draw = np.random.default_rng(0)
    masks = {"train_mask": np.arange(300) < 6, "val_mask": np.arange(300) >= 250, "test_mask": np.zeros(300, bool)}
    edges = draw.integers(0, 300, (2, 600))
    np.savez(tmp_path / "graph.npz", edge_index=edges, x=draw.random((300, 20)), y=np.arange(300) % 3, **masks)
    for form in ((), ("--edges", "symmetric")):
        options = ["--dataset", "graph.npz", "--data-dir", "data", "--conv", "sage", "--layers", "3", *form]
        plan = alone(["-m", "unilaunch", "plan", "--num-parts", "3", "--json", *options], tmp_path).check()
        job = openmpi5.unilaunch(3, ["run", "--epochs", "3", *options], tmp_path).check()
        assert json.loads(plan.stdout)["halo_bytes"] == job.result["bytes_per_epoch"]
        assert ("in their directions; --edges symmetric makes the graph symmetric" in job.console) == (not form)
        assert ("directed edges were given: symmetrised" in job.console) == bool(form)


@pytest.mark.usefixtures("by_numpy")
def test_a_placement_is_a_rankfile_that_mpirun_takes(launcher: Launcher, tmp_path: Path) -> None:
    """On this host's slots; and a plot."""
    line = [
        "-m",
        "unilaunch",
        "plan",
        "--num-parts",
        "2",
        "--hosts",
        "localhost:2",
        "--rankfile",
        "ranks",
        "--plot",
        "p.html",
    ]
    job = alone(line, tmp_path).check()
    assert "measured here" in job.stdout
    assert re.findall(r"rank \d=localhost slot=\d", (tmp_path / "ranks").read_text()) == [
        "rank 0=localhost slot=0", "rank 1=localhost slot=1"
    ]  # fmt: skip
    assert (tmp_path / "p.html").stat().st_size > 1 << 20
    job = alone(["-m", "unilaunch", "launch", "-n", "2", "-H", "localhost:2", "--map-by", "rankfile:file=ranks",
                 "--mpirun", str(launcher.path), "--allow-run-as-root", "--epochs", "2"], tmp_path)  # fmt: skip
    assert job.returncode == 0, job.stderr
    assert json.loads((tmp_path / "log_output" / "result.json").read_text())["world_size"] == 2


def _sparse(folder: Path, columns: int) -> None:
    """Write a graph of 300 nodes with one entry each in many sparse columns."""
    draw = np.random.default_rng(0)
    np.savez(
        folder / "sparse.npz", edge_index=draw.integers(0, 300, (2, 900)), y=np.arange(300) % 3,
        x_indptr=np.arange(301), x_indices=draw.integers(0, columns, 300), x_data=np.ones(300, np.float32),
        x_shape=np.array([300, columns]),
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["torch", "mindspore"])
def test_the_memory_of_a_plan_is_that_of_a_run(backend: str, tmp_path: Path) -> None:
    """With 15 million weights, within 15 %; `benchmarks/forecast.py` compares more."""
    _sparse(tmp_path, 30_000)
    options = ["--dataset", "sparse.npz", "--data-dir", "data", "--hidden", "500", "--backend", backend]
    plan = alone(["-m", "unilaunch", "plan", "--num-parts", "1", "--json", *options], tmp_path).check()
    job = alone(["-m", "unilaunch", "run", "--epochs", "3", "--eval-every", "1", *options], tmp_path).check()
    forecast = json.loads(plan.stdout)
    assert forecast["peak_memory_bytes"] == sum(forecast["memory_bytes"].values())
    assert forecast["peak_memory_bytes"] == pytest.approx(job.result["ranks"][0]["peak_memory_bytes"], rel=0.15)


def test_a_run_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    """Before the graph is divided, in one line with what is needed, what is there and the way out."""
    _sparse(tmp_path, 200_000)
    options = ["--dataset", "sparse.npz", "--data-dir", "data", "--hidden", "1000000"]
    job = alone(["-m", "unilaunch", "run", *options], tmp_path)
    assert (job.returncode, len(job.refusals())) == (2, 1)
    assert re.search(r"its rank needs [\d,.]+ GB, and \S+ has [\d,.]+ GB: .*--force", job.refusals()[0])
    assert not list(tmp_path.glob("data/partitions/*"))


@pytest.mark.parametrize(("arguments", "words"), [
    (["--num-parts", "65536"], "--num-parts 65536: expected numbers from 1 to 4,096"),
    (["--device", "h100"], "--device h100: plan forecasts ranks on cpu"),
    (["--residual"], "--residual --layers 2: only a layer between the first and the last adds its input"),
    (["--num-parts", "0"], "--num-parts 0: expected numbers"),
    (["--num-parts", "two"], "--num-parts two: expected numbers"),
    (["--num-parts", "4", "--hosts", "a:2"], "--hosts a:2: 2 slots for 4 parts"),
    (["--rankfile", "x"], "--rankfile: which hosts?"),
    (["--partitioner", "scotch"], "no partitioner 'scotch'; installed: kaminpar, metis, mtkahypar"),
    (["--task", "regression"], "--task regression: the labels of sbm are int64 with 1 dimension(s): --task classes"),
    (["--edges", "given"], "--edges given --conv gcn: A_hat needs a symmetric graph"),
    (["--halo", "int8"], "--halo: halo rows are exact"),
    (["--backend", "tensorflow"], "no backend 'tensorflow'; installed: mindspore, torch"),
])  # fmt: skip
def test_refusals(arguments: list[str], words: str, tmp_path: Path) -> None:
    job = alone(["-m", "unilaunch", "plan", *arguments], tmp_path)
    assert (job.returncode, len(job.refusals())) == (2, 1)
    assert words in job.refusals()[0]
    assert not list(tmp_path.iterdir())
