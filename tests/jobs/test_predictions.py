"""What a run leaves: the last and the best model, and predictions of all nodes in the user's order."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from jobs.mpirun import UNPRIVILEGED, Launcher, alone, finish

pytestmark = pytest.mark.usefixtures("by_numpy")


def _graph(labels: NDArray[Any]) -> dict[str, NDArray[Any]]:
    draw = np.random.default_rng(0)
    return {"edge_index": draw.integers(0, 90, (2, 300)), "x": draw.random((90, 6), np.float32), "y": labels}


LABELS = {
    "classes": np.arange(90) % 3,
    "multilabel": (np.random.default_rng(1).random((90, 4)) < 0.4).astype(np.uint8),
    "regression": np.random.default_rng(1).random((90, 2)).astype(np.float32),
}


def _read(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as file:
        return dict(file)


CONVS = {
    "classes": ["--conv", "sage", "--bias"],
    "multilabel": ["--conv", "gat", "--heads", "4", "--hidden", "4", "--bias"],
    "regression": ["--conv", "sage", "--bias"],
}


@pytest.mark.parametrize("task", LABELS)
def test_a_model_says_the_same_anywhere(openmpi5: Launcher, task: str, tmp_path: Path) -> None:
    """In the run, in one process and on three ranks; and the best model is that of the lowest validation loss."""
    np.savez(tmp_path / "graph.npz", **_graph(LABELS[task]))
    options = ["--dataset", "graph.npz", "--data-dir", "data", "--task", task, "--lr", "0.1", "--eval-every", "1"]
    arguments = ["run", *options, "--epochs", "12", "--save-predictions", *CONVS[task]]
    result = openmpi5.unilaunch(2, arguments, tmp_path).check().result
    assert result["task"] == task
    checkpoints = tmp_path / "log_output" / "checkpoints"
    with (
        safe_open(checkpoints / "best.safetensors", "numpy") as best,
        safe_open(checkpoints / "final.safetensors", "numpy") as final,
    ):
        assert {f"{name}{moment}" for name in best.keys() for moment in ("", ".first_moment", ".second_moment")} == {  # noqa: SIM118  (no mapping)
            *final.keys()
        }
        history = best.metadata()["unilaunch"]
    lowest = min(result["evaluations"], key=lambda one: one["val_loss"])
    assert f'"epoch": {lowest["epoch"]},' in history
    of_run = _read(tmp_path / "log_output" / "predictions.npz")
    (checkpoints / "best.safetensors").unlink()  # predict takes the last model then, as the run does
    alone(["-m", "unilaunch", "predict", "log_output", "--embeddings", "--output", "one.npz"], tmp_path).check()
    of_three = openmpi5.unilaunch(3, ["predict", "log_output", "--output", "three.npz"], tmp_path).check()
    assert of_three.console.count("best.safetensors, is not there: final.safetensors is taken, the last one") == 1
    one, three = (_read(tmp_path / name) for name in ("one.npz", "three.npz"))
    assert one.pop("embeddings").shape == (90, 16)
    for other in (one, three):
        assert other.keys() == of_run.keys()
        for name, array in of_run.items():
            np.testing.assert_allclose(other[name], array, rtol=0, atol=1e-5)
    test, labels = of_run["split"] == 3, LABELS[task]
    if task == "classes":
        assert (of_run["classes"] == labels)[test].mean() == pytest.approx(result["test_accuracy"])
    elif task == "multilabel":
        said, has = of_run["classes"][test] > 0, labels[test] > 0
        assert 2 * (said & has).sum() / (said.sum() + has.sum()) == pytest.approx(result["test_micro_f1"])
    else:
        assert np.abs(of_run["scores"] - labels)[test].mean() == pytest.approx(result["test_mae"], rel=1e-5)


def test_sage_predicts_on_the_edges_that_it_was_trained_on(tmp_path: Path) -> None:
    """A spec with other --edges than the model's is refused.

    So is a graph with a negative weight, of which there is no mean.
    """
    graph = _graph(LABELS["classes"])
    np.savez(tmp_path / "graph.npz", **graph)
    np.savez(tmp_path / "negative.npz", **graph, edge_weight=-np.ones(graph["edge_index"].shape[1]))
    options = ["--dataset", "graph.npz", "--data-dir", "data", "--conv", "sage", "--edges", "symmetric"]
    alone(["-m", "unilaunch", "run", *options, "--epochs", "3", "--save-predictions"], tmp_path).check()
    root = tmp_path / "log_output"
    (root / "checkpoints" / "best.safetensors").unlink()
    spec = json.loads((root / "spec.json").read_text())
    assert spec["options"].pop("edges") == "symmetric"
    (root / "spec.json").write_text(json.dumps(spec))
    for options, words in (
        ([], "was trained with other --edges than the spec in log_output says"),
        (["--dataset", "negative.npz"], "negative.npz: an edge has the weight -1: the mean over the neighbours needs"),
    ):
        job = alone(["-m", "unilaunch", "predict", "log_output", *options], tmp_path)
        assert (job.returncode, len(job.refusals())) == (2, 1)
        assert words in job.refusals()[0]


def test_what_does_not_fit_is_refused_in_one_line(openmpi5: Launcher, tmp_path: Path) -> None:
    """Another task than the labels', no model, another content of the data set, other features."""
    np.savez(tmp_path / "graph.npz", **_graph(LABELS["classes"]))
    options = ["--dataset", "graph.npz", "--data-dir", "data", "--epochs", "2"]

    def refused(arguments: list[str]) -> str:
        job = alone(["-m", "unilaunch", *arguments], tmp_path)
        assert job.returncode == 2, job.console
        (line,) = job.refusals()
        return line

    job = openmpi5.unilaunch(2, ["run", *options, "--task", "regression"], tmp_path)
    assert job.returncode == 2
    assert "--task regression: the labels of graph.npz are int64" in job.refusals()[0]
    alone(["-m", "unilaunch", "run", *options, "--no-save-model"], tmp_path).check()
    assert not (tmp_path / "log_output" / "checkpoints").exists()
    assert "no model" in refused(["predict", "log_output"])
    alone(["-m", "unilaunch", "run", *options], tmp_path).check()
    np.savez(tmp_path / "other.npz", **_graph(LABELS["classes"]) | {"x": np.ones((90, 5), np.float32)})
    assert "5 features, but the model was trained on 6" in refused(["predict", "log_output", "--dataset", "other.npz"])
    np.savez(tmp_path / "other.npz", **_graph(np.arange(90) % 2))  # one of the model's classes is not in this graph
    alone(["-m", "unilaunch", "predict", "log_output", "--dataset", "other.npz"], tmp_path).check()
    assert _read(tmp_path / "predictions.npz")["scores"].shape == (90, 3)
    np.savez(tmp_path / "graph.npz", **_graph(np.roll(LABELS["classes"], 1)))  # a prediction depends on no label
    alone(["-m", "unilaunch", "predict", "log_output"], tmp_path).check()
    np.savez(tmp_path / "graph.npz", **_graph(LABELS["classes"]) | {"x": np.ones((90, 6), np.float32)})
    assert "another content" in refused(["predict", "log_output"])
    alone(["-m", "unilaunch", "predict", "log_output", "--dataset", "graph.npz"], tmp_path).check()
    assert "cannot be read" in refused(["predict", "nothing"])
    for output in (".", "log_output", "missing/out.npz"):
        assert f"--output {output}: expected the name of a file" in refused(["predict", "--output", output])


@pytest.mark.parametrize("task", LABELS)
def test_predictions_need_no_labels(openmpi5: Launcher, task: str, tmp_path: Path) -> None:
    """Nor do labels for another task, more classes or masks without training nodes matter; a training needs some."""
    graph = _graph(LABELS[task])
    np.savez(tmp_path / "graph.npz", **graph)
    train = ["run", "--data-dir", "data", "--output-dir"]
    model = [*train, "model", "--dataset", "graph.npz", "--epochs", "2", "--conv", "sage", "--save-predictions"]
    alone(["-m", "unilaunch", *model], tmp_path).check()
    (tmp_path / "model" / "checkpoints" / "best.safetensors").unlink()
    expected, some = _read(tmp_path / "model" / "predictions.npz"), np.arange(90) < 20
    masks = {"train_mask": some & ~some, "val_mask": some, "test_mask": ~some}
    without = {name: array for name, array in graph.items() if name != "y"}
    others: dict[str, tuple[dict[str, Any], Any]] = {
        "no_y": (without, 0),
        "unknown": (without | {"y": np.full(90, -1)}, 0),
        "test": (graph | masks, np.where(some, 2, 3)),
        **{name: (_graph(labels), None) for name, labels in LABELS.items()},
        "more": (_graph(np.arange(90) % 5), None),
    }
    for name, (arrays, split) in others.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        arguments = ["predict", "model", "--dataset", f"{name}.npz", "--output", "out.npz"]
        if name == "no_y":
            openmpi5.unilaunch(2, arguments, tmp_path).check()
        else:
            alone(["-m", "unilaunch", *arguments], tmp_path).check()
        found = _read(tmp_path / "out.npz")
        assert found.keys() == expected.keys()
        np.testing.assert_allclose(found["scores"], expected["scores"], rtol=0, atol=1e-5)
        assert split is None or (found["split"] == split).all()
    for command in (["plan", "--data-dir", "data", "--num-parts", "2"], [*train, "none"]):
        job = alone(["-m", "unilaunch", *command, "--dataset", "no_y.npz"], tmp_path)
        assert job.returncode == 2, job.console
        (line,) = job.refusals()
        assert "no_y.npz: no node to train on: there is no y, no label in y is known, or train_mask has no node" in line


#: A user's whole model, trained elsewhere, on a graph; with a second argument it is trained.
WHOLE_MODEL = {
    "torch": """
import sys, torch
from torch_geometric.nn import GATv2Conv
import unilaunch_graph as ug
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = GATv2Conv(6, 4, heads=2), GATv2Conv(8, 3)
    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)
part = ug.load(sys.argv[1], data_dir="data")
torch.manual_seed(0)
model = ug.torch.distribute(Net().eval(), part)
ug.predict(model, part, "out.npz")
if sys.argv[2:]:
    losses = torch.nn.functional.cross_entropy(model(part.x, part.edge_index)[part.train_mask], part.y[part.train_mask])
    ug.torch.mean(losses, part.num_train)
""",
    "mindspore": """
import sys, mindspore as ms
from mindspore import nn, ops
import unilaunch_graph as ug
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.last = ug.mindspore.GATConv(6, 4, heads=2), ug.mindspore.GATConv(8, 3)
    def construct(self, x, part):
        return self.last(ops.relu(self.first(x, part)), part)
part = ug.load(sys.argv[1], data_dir="data")
ms.set_seed(0)
model = Net().set_train(False)
ug.predict(model, part, "out.npz")
if sys.argv[2:]:
    ug.mindspore.mean(model(part.x, part)[part.train_mask], part.num_train)
""",
}


@pytest.mark.parametrize("framework", WHOLE_MODEL)
def test_a_whole_model_of_ones_own_predicts_without_labels(
    openmpi5: Launcher, framework: str, tmp_path: Path
) -> None:  # fmt: skip
    """On one rank and on two, what it predicts where the graph has labels; a training is refused in one line."""
    graph = _graph(LABELS["classes"])
    np.savez(tmp_path / "labels.npz", **graph)
    np.savez(tmp_path / "none.npz", **{name: array for name, array in graph.items() if name != "y"})
    (tmp_path / "model.py").write_text(WHOLE_MODEL[framework])
    alone(["model.py", "labels.npz"], tmp_path).check()
    expected = _read(tmp_path / "out.npz")["scores"]
    (tmp_path / "out.npz").unlink()
    job = openmpi5.run(2, ["-m", "unilaunch", "run", "model.py", "none.npz", "train"], tmp_path)
    np.testing.assert_allclose(_read(tmp_path / "out.npz")["scores"], expected, rtol=0, atol=1e-5)
    assert (job.returncode, len(job.refusals())) == (2, 1), job.console
    assert "mean over 0 nodes: expected a positive number, such as part.num_train, which is 0 of" in job.stderr


def test_a_model_of_a_drawn_split_predicts_on_a_graph_that_brings_its_own(tmp_path: Path) -> None:
    """The seed is for the graph of the run, under any name; a training with a seed and a split is refused."""
    graph, some = _graph(LABELS["classes"]), np.arange(90) < 20
    masks = {"train_mask": some, "val_mask": some & ~some, "test_mask": ~some}
    np.savez(tmp_path / "graph.npz", **graph)
    np.savez(tmp_path / "masks.npz", **graph | masks)
    run = ["-m", "unilaunch", "run", "--data-dir", "data", "--epochs", "2", "--split-seed", "3", "--save-predictions"]
    alone([*run, "--dataset", "graph.npz"], tmp_path).check()
    drawn = _read(tmp_path / "log_output" / "predictions.npz")["split"]
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "masks.npz", tmp_path / "other" / "graph.npz")
    shutil.copy(tmp_path / "graph.npz", tmp_path / "copy.npz")
    own = np.where(some, 1, 3)
    for dataset, split in (("graph.npz", drawn), ("copy.npz", drawn), ("masks.npz", own), ("other/graph.npz", own)):
        alone(["-m", "unilaunch", "predict", "log_output", "--dataset", dataset], tmp_path).check()
        np.testing.assert_array_equal(_read(tmp_path / "predictions.npz")["split"], split)
    job = alone([*run, "--dataset", "masks.npz"], tmp_path)
    assert job.returncode == 2
    (line,) = job.refusals()
    assert "masks.npz: has its own split, so split_seed=3 draws none: leave it out" in line


def test_a_best_model_that_is_gone_is_said(tmp_path: Path) -> None:
    """Where a run resumes, and where the last model is taken; not where none was to be kept, or none was validated."""
    graph, some = _graph(LABELS["classes"]), np.arange(90) < 20
    masks = {"train_mask": some, "val_mask": some & ~some, "test_mask": ~some}
    np.savez(tmp_path / "graph.npz", **graph)
    np.savez(tmp_path / "no_val.npz", **graph | masks)
    best = tmp_path / "log_output" / "checkpoints" / "best.safetensors"

    def console(*arguments: str) -> str:
        return alone(["-m", "unilaunch", *arguments], tmp_path).check().console

    def resumed(epochs: int, *options: str) -> str:
        options = ("--epochs", str(epochs), "--eval-every", "1", "--lr", "1e-12", *options)
        return console("run", "--resume", "--data-dir", "data", "--dataset", "graph.npz", *options)

    assert "so far is gone" not in resumed(1, "--no-save-model", "--checkpoint-every", "1")
    assert "so far is gone" not in resumed(2, "--no-save-model", "--checkpoint-every", "1")
    assert f"{best}: cannot be read: No such file or directory: the best model so far is gone" in resumed(3)
    best.write_bytes(b"damaged")
    assert f"{best}: damaged: " in resumed(4)
    best.unlink()
    assert "best.safetensors, is not there: final.safetensors is taken" in console("predict")
    console("run", "--data-dir", "data", "--dataset", "graph.npz", "--epochs", "1")
    assert "so far is gone" not in console(
        "run", "--data-dir", "data", "--dataset", "graph.npz", "--epochs", "2", "--resume"
    )
    assert "is not there" not in console("predict")
    console("run", "--data-dir", "data", "--dataset", "no_val.npz", "--epochs", "1")
    assert "is not there" not in console("predict")
    assert "so far is gone" not in console(
        "run", "--data-dir", "data", "--dataset", "no_val.npz", "--epochs", "2", "--resume"
    )


@pytest.mark.parametrize(("second", "words"), [
    (["--layers", "3", "--residual", "--dropout", "0"], "its residual is True, not False"),
    (["--layers", "3", "--hidden", "5"], "its hidden is 5, not 16"),
    (["--layers", "2"], "its layers is 2, not 3"),
    (["--layers", "3", "--seed", "1"], "its seed is 1, not 0"),
], ids=["residual", "hidden", "layers", "seed"])  # fmt: skip
def test_a_model_of_another_run_is_refused(second: list[str], words: str, tmp_path: Path) -> None:
    """It lies where the run had its own."""
    np.savez(tmp_path / "graph.npz", **_graph(LABELS["classes"]))
    options = ["--dataset", "graph.npz", "--data-dir", "data", "--epochs", "2", "--checkpoint-dir", "models"]
    alone(["-m", "unilaunch", "run", *options, "--layers", "3", "--output-dir", "first"], tmp_path).check()
    for path in (tmp_path / "models").iterdir():
        path.unlink()
    alone(["-m", "unilaunch", "run", *options, *second, "--output-dir", "second"], tmp_path).check()
    job = alone(["-m", "unilaunch", "predict", "first"], tmp_path)
    assert job.returncode == 2, job.console
    (line,) = job.refusals()
    assert words in line
    alone(["-m", "unilaunch", "predict", "second"], tmp_path).check()


def test_a_resume_that_was_refused_leaves_the_model(tmp_path: Path) -> None:
    """The spec is the refused run's: what only the training depends on has no effect, and precision is the model's."""
    np.savez(tmp_path / "graph.npz", **_graph(LABELS["classes"]))
    options = ["--dataset", "graph.npz", "--data-dir", "data", "--epochs"]
    alone(["-m", "unilaunch", "run", *options, "2"], tmp_path).check()
    alone(["-m", "unilaunch", "predict", "--output", "before.npz"], tmp_path).check()
    other = ["--lr", "0.5", "--seed", "4", "--dropout", "0", "--precision", "bfloat16"]
    assert alone(["-m", "unilaunch", "run", *options, "4", "--resume", *other], tmp_path).returncode == 2
    alone(["-m", "unilaunch", "predict"], tmp_path).check()
    before, after = _read(tmp_path / "before.npz"), _read(tmp_path / "predictions.npz")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert alone(["-m", "unilaunch", "run", *options, "4", "--resume", "--bias"], tmp_path).returncode == 2
    (line,) = alone(["-m", "unilaunch", "predict"], tmp_path).refusals()
    assert "its bias is False, not True: one of them has been replaced since" in line


def test_a_run_is_found_from_another_folder(tmp_path: Path) -> None:
    """Its data and its model lie where it was started; what is not there is named."""
    np.savez(tmp_path / "graph.npz", **_graph(LABELS["classes"]))
    options = ["--dataset", "graph.npz", "--data-dir", "data", "--epochs", "2", "--checkpoint-dir", "models"]
    alone(["-m", "unilaunch", "run", *options], tmp_path).check()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    alone(["-m", "unilaunch", "predict", "../log_output"], elsewhere).check()
    assert [path.name for path in elsewhere.iterdir()] == ["predictions.npz"]
    again = ["-m", "unilaunch", "run", "--config", "log_output/spec.json", "--output-dir", "again", "--resume"]
    assert "resumed after epoch 2" in alone(again, tmp_path).check().console
    (tmp_path / "models").rename(tmp_path / "moved")
    (line,) = alone(["-m", "unilaunch", "predict", "../log_output"], elsewhere).refusals()
    assert "models: no model: there is no such folder" in line


def test_folders_that_may_not_be_entered_are_refused_in_one_line(tmp_path: Path) -> None:
    """The model's folder, and the folder of the file that is to be written."""
    np.savez(tmp_path / "graph.npz", **_graph(LABELS["classes"]))
    alone(["-m", "unilaunch", "run", "--dataset", "graph.npz", "--data-dir", "data", "--epochs", "2"], tmp_path).check()
    closed = tmp_path / "closed"
    (closed / "out").mkdir(parents=True)
    closed.chmod(0)
    for arguments, words in (
        (["--output", "closed/out/p.npz"], "--output closed/out/p.npz: expected the name of a file"),
        ([], "checkpoints cannot be read: Permission denied"),
    ):
        line = [*UNPRIVILEGED, sys.executable, "-m", "unilaunch", "predict", "log_output", *arguments]
        job = finish(line, tmp_path, None)
        assert job.returncode == 2, job.console
        assert words in job.refusals()[0]
        assert "Traceback" not in job.console
        (tmp_path / "log_output" / "checkpoints").chmod(0)
    closed.chmod(0o700)
    (tmp_path / "log_output" / "checkpoints").chmod(0o700)
