"""Graphs that are unlike the tutorials': each trains, and as one process would in dense matrices."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.mpirun import Launcher, alone
from jobs.trained import Trained, train_cases
from reference import train_reference
from unilaunch_graph.data.sources import open_dataset

pytestmark = pytest.mark.xdist_group("edge cases")

Arrays = dict[str, Any]
Train = Callable[[str], Mapping[str, Trained]]
RANKS = 3


def _features(num_nodes: int) -> Any:
    return np.random.default_rng(1).random((num_nodes, 6), dtype=np.float32)


def _masks(num_nodes: int, train: list[int]) -> Arrays:
    used = np.isin(np.arange(num_nodes), train)
    return {"train_mask": used, "val_mask": ~used, "test_mask": np.zeros(num_nodes, bool)}


def _cliques(number: int, bridge: list[tuple[int, int]]) -> Any:
    starts = range(0, 6 * number, 6)
    within = [(a, b) for start in starts for a in range(start, start + 6) for b in range(a + 1, start + 6)]
    return np.array([*within, *bridge]).T


def _no_training_nodes_in_a_part() -> Arrays:
    return {"edge_index": _cliques(2, [(0, 6)]), "y": np.arange(12) % 3, **_masks(12, [0, 1, 2, 3])}


def _no_halo() -> Arrays:
    return {"edge_index": _cliques(RANKS, []), "y": np.arange(18) % 3, **_masks(18, [0, 1, 2, 6, 7, 14])}


def _fewer_nodes_than_ranks() -> Arrays:
    return {"edge_index": np.array([[0], [1]]), "y": np.array([0, 1]), **_masks(2, [0, 1])}


def _isolated_nodes() -> Arrays:
    chain = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    return {"edge_index": chain, "y": np.arange(10) % 2, **_masks(10, [0, 1, 8, 9])}


def _self_loops_and_duplicates() -> Arrays:
    edges = np.array([[0, 0, 1, 1, 1, 2, 5, 5, 3, 4], [0, 1, 0, 2, 2, 2, 4, 4, 4, 3]])
    return {"edge_index": edges, "y": np.arange(6) % 2, **_masks(6, [0, 1, 4])}


def _a_class_missing_in_a_part() -> Arrays:
    return {"edge_index": _cliques(2, [(5, 6)]), "y": np.repeat([0, 1], 6), **_masks(12, [0, 1, 6, 7])}


def _int64_ids_directed() -> Arrays:
    edges = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 0]], np.int64)
    return {"edge_index": edges, "y": np.arange(8, dtype=np.int64) % 2, **_masks(8, [0, 3])}


def _weights_and_directions() -> Arrays:
    edges = np.array([[0, 1, 2, 2, 2, 5, 6, 7, 7, 1, 3], [1, 0, 3, 3, 2, 4, 5, 0, 6, 2, 4]])
    weights = np.array([2, 1, 0.5, 0.25, 3, 4, 1, 0, 2.5, 1.5, 0.75])
    given = {"edge_index": edges, "edge_weight": weights, "edge_attr": np.ones((11, 2))}
    return {**given, "y": np.arange(8) % 2, **_masks(8, [0, 1, 4])}


def _unknown_labels() -> Arrays:
    labels = np.array([0, 1, -1, -1, 0, 1, -1, -1])
    return {"edge_index": _int64_ids_directed()["edge_index"], "y": labels, **_masks(8, [0, 1])} | {
        "val_mask": np.isin(np.arange(8), [4, 5])
    }


def _no_validation_nodes() -> Arrays:
    return _no_halo() | {"val_mask": np.zeros(18, bool)}


def _star() -> Arrays:
    star = np.array([np.zeros(39, int), np.arange(1, 40)])
    return {"edge_index": star, "y": np.arange(40) % 2, **_masks(40, list(range(20)))}


CASES: dict[str, Callable[[], Arrays]] = {
    "a part without training nodes": _no_training_nodes_in_a_part,
    "a part without halo": _no_halo,
    "more ranks than nodes": _fewer_nodes_than_ranks,
    "isolated nodes": _isolated_nodes,
    "self-loops and duplicate edges": _self_loops_and_duplicates,
    "a class missing in a part": _a_class_missing_in_a_part,
    "int64 ids, one direction": _int64_ids_directed,
    "weights and directions": _weights_and_directions,
    "unknown labels": _unknown_labels,
    "no validation nodes": _no_validation_nodes,
}
#: A diffusion that keeps nothing: no entry of a star's reaches the threshold, not even a node's own.
KEEPS_NOTHING = ["--use-gdc", "--gdc-threshold", "0.5"]
DIFFUSED = {"diffused": KEEPS_NOTHING, "diffused, by columns": [*KEEPS_NOTHING, "--parallel", "tensor"]}


@pytest.fixture(scope="module")
def train(openmpi5: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train all cases in one start of a framework."""
    common = ["--precision", "float64", "--epochs", "12", "--hidden", "4", "--normalize-features"]

    @cache
    def train(backend: str) -> Mapping[str, Trained]:
        folder = tmp_path_factory.mktemp("unlike")
        for case, make in (CASES | {"star": _star}).items():
            _write(folder / f"{case}.npz", make())
        cases = {case: [*common, "--dataset", f"{case}.npz"] for case in CASES}
        cases |= {case: ["--epochs", "5", "--dataset", "star.npz", *options] for case, options in DIFFUSED.items()}
        return train_cases(openmpi5, backend, RANKS, cases, folder)

    return train


def _write(path: Path, arrays: Arrays) -> None:
    np.savez(path, x=_features(len(arrays["y"])), **arrays)


@pytest.mark.parametrize("case", CASES)
def test_unlike_graphs_train_exactly(backend: str, case: str, train: Train, tmp_path: Path) -> None:
    """Losses and logits equal the dense reference's to 1e-10."""
    _write(tmp_path / "graph.npz", CASES[case]())
    graph = open_dataset(str(tmp_path / "graph.npz"), None, None, 0, normalize_features=True).load().symmetrised()[0]
    expected = train_reference(graph, [6, 4, graph.num_classes], epochs=12, dropout=0.5, seed=0)
    trained = train(backend)[case]
    np.testing.assert_allclose(trained.result["loss"], expected.losses, rtol=0, atol=1e-10)
    np.testing.assert_allclose(trained.logits, expected.logits, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("by_numpy")
def test_what_the_gcn_cannot_learn_is_refused(openmpi5: Launcher, tmp_path: Path) -> None:
    """A negative weight and labels of another task: one line, exit code 2, the array named."""
    arrays = {"edge_index": _cliques(2, []), "x": _features(12)}
    weights = -np.ones(arrays["edge_index"].shape[1])
    np.savez(tmp_path / "negative.npz", **arrays, y=np.arange(12) % 3, edge_weight=weights)
    np.savez(tmp_path / "values.npz", **arrays, y=np.arange(12) / 3)
    of_another = "--task classes: the labels of values.npz are float64"
    for name, words in (("negative", "has the weight -1: "), ("values", of_another)):
        options = ["--dataset", f"{name}.npz", "--data-dir", "data", "--task", "classes"]
        job = openmpi5.unilaunch(2, ["run", *options], tmp_path)
        assert job.returncode == 2
        assert words in job.stderr
        assert "Traceback" not in job.stderr


def test_an_empty_split_is_null_in_the_result(backend: str, train: Train) -> None:
    """And not 0 %."""
    result = train(backend)["no validation nodes"].result
    assert [result[f"{use}_accuracy"] for use in ("val", "test")] == [None, None]
    assert result["train_accuracy"] > 0
    assert {one["val_loss"] for one in result["evaluations"]} == {None}


@pytest.mark.usefixtures("by_numpy")
def test_an_empty_split_has_no_accuracy(openmpi5: Launcher, tmp_path: Path) -> None:
    """On the page neither; the summary says why."""
    _write(tmp_path / "graph.npz", _no_validation_nodes())
    arguments = ["run", "--dataset", "graph.npz", "--data-dir", "data", "--epochs", "3"]
    job = openmpi5.unilaunch(2, arguments, tmp_path).check()
    assert [one["val_loss"] for one in job.result["evaluations"]] == [None]
    assert "val none (no such nodes), test none (no such nodes)" in job.stdout
    page = tmp_path / alone(["-m", "unilaunch", "report"], tmp_path).check().stdout.strip()
    assert "train accuracy" in page.read_text()
    assert "validation accuracy" not in page.read_text()


@pytest.mark.usefixtures("by_numpy")
def test_patience_needs_validation_nodes(openmpi5: Launcher, tmp_path: Path) -> None:
    """There is nothing to wait for: refused by name, before the framework is imported."""
    _write(tmp_path / "graph.npz", _no_validation_nodes())
    job = openmpi5.unilaunch(2, ["run", "--dataset", "graph.npz", "--data-dir", "data", "--patience", "3"], tmp_path)
    assert job.returncode == 2
    (line,) = job.refusals()
    assert "--patience 3: graph.npz has no validation nodes" in line
    assert "framework import" not in (job.output / "rank.0" / "events.jsonl").read_text()


@pytest.mark.parametrize("case", DIFFUSED)
def test_a_diffusion_that_keeps_nothing_trains(backend: str, case: str, train: Train) -> None:
    """The rows of A_hat are 0."""
    result = train(backend)[case].result
    assert len(result["loss"]) == 5
    assert np.isfinite(result["loss"]).all()
    assert result["bytes_per_epoch"] == 0 or "columns" in case


@pytest.mark.usefixtures("by_numpy")
def test_a_diffusion_that_keeps_nothing_is_told(openmpi5: Launcher, tmp_path: Path) -> None:
    """With the number of edges."""
    _write(tmp_path / "graph.npz", _star())
    arguments = ["run", "--dataset", "graph.npz", "--data-dir", "data", "--epochs", "1", *KEEPS_NOTHING]
    console = openmpi5.unilaunch(2, arguments, tmp_path).check().console
    assert "diffused: 0 edges" in console
    assert re.search("WARNING +--gdc-threshold 0.5 keeps no edge between two nodes", console)
