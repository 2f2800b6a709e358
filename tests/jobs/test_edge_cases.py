"""Graphs that are unlike the tutorials': each trains, and as one process would in dense matrices."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.mpirun import Launcher, unilaunch
from jobs.trained import Trained, train_cases
from reference import train_reference
from unilaunch_graph.data.sources import open_dataset

pytestmark = pytest.mark.xdist_group("edge cases")

Trainings = Mapping[str, Trained]
RING = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 0]])
GIVEN = [[0, 1, 2, 2, 2, 5, 6, 7, 7, 1, 3], [1, 0, 3, 3, 2, 4, 5, 0, 6, 2, 4]]


def _graph(edges: Any, y: Any, train: list[int], **more: Any) -> dict[str, Any]:
    nodes = np.arange(len(y))
    used = np.isin(nodes, train)
    masks = {"train_mask": used, "val_mask": ~used, "test_mask": np.zeros(len(y), bool)}
    x = np.random.default_rng(1).random((len(y), 6), dtype=np.float32)
    return {"edge_index": np.array(edges), "y": np.array(y), "x": x, **masks, **more}


GRAPHS: dict[str, dict[str, Any]] = {
    "more ranks than nodes": _graph([[0], [1]], [0, 1], [0, 1]),
    "isolated nodes": _graph([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]], np.arange(10) % 2, [0, 1, 8, 9]),
    "self-loops and duplicate edges": _graph(
        [[0, 0, 1, 1, 1, 2, 5, 5, 3, 4], [0, 1, 0, 2, 2, 2, 4, 4, 4, 3]], np.arange(6) % 2, [0, 1, 4]
    ),
    "weights and directions": _graph(
        GIVEN, np.arange(8) % 2, [0, 1, 4], edge_attr=np.ones((11, 2)),
        edge_weight=np.array([2, 1, 0.5, 0.25, 3, 4, 1, 0, 2.5, 1.5, 0.75]),
    ),
    "unknown labels": _graph(RING, [0, 1, -1, -1, 0, 1, -1, -1], [0, 1], val_mask=np.isin(np.arange(8), [4, 5])),
    "no validation nodes": _graph(RING, np.arange(8) % 2, [0, 3], val_mask=np.zeros(8, bool)),
}  # fmt: skip
#: A diffusion that keeps nothing: no entry of a star's reaches the threshold, not even a node's own.
STAR = _graph([np.zeros(39, int), np.arange(1, 40)], np.arange(40) % 2, list(range(20)))
KEEPS_NOTHING = ["--use-gdc", "--gdc-threshold", "0.5", "--epochs", "5"]


@pytest.fixture(scope="module")
def trained(openmpi5: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    """Train all cases in one start, on three ranks."""
    folder = tmp_path_factory.mktemp("unlike")
    common = ["--precision", "float64", "--epochs", "12", "--hidden", "4", "--normalize-features"]
    for case, graph in GRAPHS.items():
        np.savez(folder / f"{case}.npz", **graph)
    cases = {case: [*common, "--dataset", f"{case}.npz"] for case in GRAPHS}
    return train_cases(openmpi5, "torch", 3, cases, folder)


@pytest.mark.parametrize("case", GRAPHS)
def test_unlike_graphs_train_exactly(case: str, trained: Trainings, tmp_path: Path) -> None:
    """Losses and logits equal the dense reference's to 1e-10; an empty split has no accuracy, and not 0 %."""
    np.savez(tmp_path / "graph.npz", **GRAPHS[case])
    graph = open_dataset(str(tmp_path / "graph.npz"), None, None, 0, normalize_features=True).load().symmetrised()[0]
    expected = train_reference(graph, [6, 4, graph.num_classes], epochs=12, dropout=0.5, seed=0)
    result = trained[case].result
    np.testing.assert_allclose(result["loss"], expected.losses, rtol=0, atol=1e-10)
    np.testing.assert_allclose(trained[case].logits, expected.logits, rtol=0, atol=1e-10)
    assert result["test_accuracy"] is None
    assert (result["val_accuracy"] is None) == (case in {"no validation nodes", "more ranks than nodes"})


@pytest.mark.usefixtures("by_numpy")
def test_what_the_gcn_cannot_learn_is_refused(tmp_path: Path) -> None:
    """A negative weight and labels of another task: one line, exit code 2, the array named."""
    np.savez(tmp_path / "negative.npz", **_graph(RING, np.arange(8) % 2, [0], edge_weight=-np.ones(8)))
    np.savez(tmp_path / "values.npz", **_graph(RING, np.arange(8) / 3, [0]))
    for name, words in (("negative", "has the weight -1"), ("values", "the labels of values.npz are float64")):
        options = ["--dataset", f"{name}.npz", "--data-dir", "data", "--task", "classes"]
        assert words in unilaunch(["run", *options], tmp_path).refusal()


@pytest.mark.usefixtures("by_numpy")
def test_an_empty_split_has_no_accuracy(tmp_path: Path) -> None:
    """On the page neither; the summary says why. Patience has nothing to wait for: it is refused by name."""
    np.savez(tmp_path / "graph.npz", **GRAPHS["no validation nodes"])
    arguments = ["run", "--dataset", "graph.npz", "--data-dir", "data", "--epochs", "3"]
    job = unilaunch(arguments, tmp_path).check()
    assert [one["val_loss"] for one in job.result["evaluations"]] == [None]
    assert "val none (no such nodes), test none (no such nodes)" in job.stdout
    page = (tmp_path / unilaunch(["report"], tmp_path).check().stdout.strip()).read_text()
    assert ("train accuracy" in page, "validation accuracy" in page) == (True, False)
    refusal = unilaunch([*arguments, "--patience", "3"], tmp_path).refusal()
    assert "--patience 3: graph.npz has no validation nodes" in refusal


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("way", [[], ["--parallel", "tensor"]], ids=["by nodes", "by columns"])
def test_a_diffusion_that_keeps_nothing_trains(openmpi5: Launcher, way: list[str], tmp_path: Path) -> None:
    """The rows of A_hat are 0; the number of edges is told."""
    np.savez(tmp_path / "star.npz", **STAR)
    job = openmpi5.unilaunch(2, ["run", "--dataset", "star.npz", "--data-dir", "data", *KEEPS_NOTHING, *way], tmp_path)
    assert np.isfinite(job.check().result["loss"]).all()
    assert "diffused: 0 edges" in job.console
    assert re.search("WARNING +--gdc-threshold 0.5 keeps no edge between two nodes", job.console)
