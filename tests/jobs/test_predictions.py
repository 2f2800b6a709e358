"""What a run leaves: the last and the best model, and predictions of all nodes in the user's order."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from jobs.mpirun import Launcher, unilaunch

pytestmark = pytest.mark.usefixtures("by_numpy")

LABELS = {
    "classes": np.arange(90) % 3,
    "multilabel": (np.random.default_rng(1).random((90, 4)) < 0.4).astype(np.uint8),
    "regression": np.random.default_rng(1).random((90, 2)).astype(np.float32),
}
CONVS = {
    "classes": ["--conv", "sage", "--bias"],
    "multilabel": ["--conv", "gat", "--heads", "4", "--hidden", "4", "--bias"],
    "regression": ["--conv", "sage", "--bias"],
}
SOME = np.arange(90) < 20
RUN = ["run", "--dataset", "graph.npz", "--data-dir", "data", "--epochs"]


def _graph(labels: NDArray[Any] = LABELS["classes"]) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {"edge_index": draw.integers(0, 90, (2, 300)), "x": draw.random((90, 6), np.float32), "y": labels}


def _masks(train: NDArray[np.bool_], val: NDArray[np.bool_]) -> dict[str, Any]:
    return {"train_mask": train, "val_mask": val, "test_mask": ~SOME}


@pytest.fixture(autouse=True)
def _graph_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", **_graph())


def _read(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as file:
        return dict(file)


@pytest.mark.parametrize("task", LABELS)
def test_a_model_says_the_same_anywhere(openmpi5: Launcher, task: str, tmp_path: Path) -> None:
    """In the run, in one process and on three ranks; and the best model is that of the lowest validation loss."""
    np.savez(tmp_path / "graph.npz", **_graph(LABELS[task]))
    options = ["--task", task, "--lr", "0.1", "--eval-every", "1", "--save-predictions", *CONVS[task]]
    result = openmpi5.unilaunch(2, [*RUN, "12", *options], tmp_path).check().result
    checkpoints = tmp_path / "log_output" / "checkpoints"
    with safe_open(checkpoints / "best.safetensors", "numpy") as best:
        history = best.metadata()["unilaunch"]
    lowest = min(result["evaluations"], key=lambda one: one["val_loss"])
    assert f'"epoch": {lowest["epoch"]},' in history
    of_run = _read(tmp_path / "log_output" / "predictions.npz")
    (checkpoints / "best.safetensors").unlink()  # predict takes the last model then, as the run does
    unilaunch(["predict", "log_output", "--embeddings", "--output", "one.npz"], tmp_path).check()
    of_three = openmpi5.unilaunch(3, ["predict", "log_output", "--output", "three.npz"], tmp_path).check()
    assert of_three.console.count("best.safetensors, is not there: final.safetensors is taken") == 1
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


def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    """No model, other features, another content of the data set, no run, no file to write."""

    def refused(*arguments: str) -> str:
        return unilaunch(["predict", *arguments], tmp_path).refusal()

    def fits(*arguments: str) -> None:
        unilaunch(["predict", "log_output", *arguments], tmp_path).check()

    unilaunch([*RUN, "2", "--no-save-model"], tmp_path).check()
    assert "no model" in refused("log_output")
    unilaunch([*RUN, "2"], tmp_path).check()
    np.savez(tmp_path / "other.npz", **_graph() | {"x": np.ones((90, 5), np.float32)})
    assert "5 features, but the model was trained on 6" in refused("log_output", "--dataset", "other.npz")
    np.savez(tmp_path / "other.npz", **_graph(np.arange(90) % 2))  # one of the model's classes is not in this graph
    fits("--dataset", "other.npz")
    assert _read(tmp_path / "predictions.npz")["scores"].shape == (90, 3)
    np.savez(tmp_path / "graph.npz", **_graph(np.roll(LABELS["classes"], 1)))  # a prediction depends on no label
    fits()
    np.savez(tmp_path / "graph.npz", **_graph() | {"x": np.ones((90, 6), np.float32)})
    assert "another content" in refused("log_output")
    fits("--dataset", "graph.npz")
    assert "nothing/spec.json: cannot be read" in refused("nothing")
    for output in (".", "log_output", "missing/out.npz"):
        assert f"--output {output}: expected the name of a file" in refused("--output", output)


def test_predictions_need_no_labels(tmp_path: Path) -> None:
    """Nor do labels for another task, more classes or masks without training nodes matter; a training needs some."""
    graph = _graph()
    unilaunch([*RUN, "2", "--conv", "sage", "--save-predictions"], tmp_path).check()
    (tmp_path / "log_output" / "checkpoints" / "best.safetensors").unlink()
    expected = _read(tmp_path / "log_output" / "predictions.npz")
    without = {name: array for name, array in graph.items() if name != "y"}
    others: dict[str, tuple[dict[str, Any], Any]] = {
        "no_y": (without, 0),
        "unknown": (without | {"y": np.full(90, -1)}, 0),
        "test": (graph | _masks(SOME & ~SOME, SOME), np.where(SOME, 2, 3)),
        "regression": (_graph(LABELS["regression"]), None),
        "more": (_graph(np.arange(90) % 5), None),
    }
    for name, (arrays, split) in others.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        unilaunch(["predict", "--dataset", f"{name}.npz", "--output", "out.npz"], tmp_path).check()
        found = _read(tmp_path / "out.npz")
        np.testing.assert_allclose(found["scores"], expected["scores"], rtol=0, atol=1e-5)
        assert split is None or (found["split"] == split).all()
    for command in (["plan", "--num-parts", "2"], ["run", "--output-dir", "none"]):
        job = unilaunch([*command, "--data-dir", "data", "--dataset", "no_y.npz"], tmp_path)
        assert "no_y.npz: no node to train on" in job.refusal()


def test_a_model_of_a_drawn_split_predicts_on_a_graph_that_brings_its_own(tmp_path: Path) -> None:
    """The seed is for the graph of the run, under any name; a training with a seed and a split is refused."""
    np.savez(tmp_path / "masks.npz", **_graph() | _masks(SOME, SOME & ~SOME))
    options = ["--split-seed", "3", "--save-predictions"]
    unilaunch([*RUN, "2", *options], tmp_path).check()
    drawn = _read(tmp_path / "log_output" / "predictions.npz")["split"]
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "masks.npz", tmp_path / "other" / "graph.npz")
    shutil.copy(tmp_path / "graph.npz", tmp_path / "copy.npz")
    own = np.where(SOME, 1, 3)
    for dataset, split in (("copy.npz", drawn), ("masks.npz", own), ("other/graph.npz", own)):
        unilaunch(["predict", "log_output", "--dataset", dataset], tmp_path).check()
        np.testing.assert_array_equal(_read(tmp_path / "predictions.npz")["split"], split)
    job = unilaunch([*RUN, "2", *options, "--dataset", "masks.npz"], tmp_path)
    assert "masks.npz: has its own split, so split_seed=3 draws none" in job.refusal()


def test_a_best_model_that_is_gone_is_said(tmp_path: Path) -> None:
    """Where a run resumes, and where the last model is taken; not where none was to be kept, or none was validated."""
    np.savez(tmp_path / "no_val.npz", **_graph() | _masks(SOME, SOME & ~SOME))
    best = tmp_path / "log_output" / "checkpoints" / "best.safetensors"

    def console(*arguments: str) -> str:
        return unilaunch([*arguments], tmp_path).check().console

    def resumed(epochs: int, *options: str) -> str:
        return console(*RUN, str(epochs), "--resume", "--eval-every", "1", "--lr", "1e-12", *options)

    resumed(1, "--no-save-model", "--checkpoint-every", "1")
    assert "so far is gone" not in resumed(2, "--no-save-model", "--checkpoint-every", "1")
    assert "the best model so far is gone" in resumed(3)
    best.write_bytes(b"damaged")
    assert f"{best}: damaged: " in resumed(4)
    best.unlink()
    assert "best.safetensors, is not there" in console("predict")
    for dataset in ("graph.npz", "no_val.npz"):
        console(*RUN, "1", "--dataset", dataset)
        assert "so far is gone" not in console(*RUN, "2", "--dataset", dataset, "--resume")
        assert "is not there" not in console("predict")


def test_a_model_of_another_run_is_refused(tmp_path: Path) -> None:
    """It lies where the run had its own."""
    options = [*RUN, "2", "--checkpoint-dir", "models", "--layers", "3", "--output-dir"]
    unilaunch([*options, "first"], tmp_path).check()
    for second, words in (
        (["--residual", "--dropout", "0"], "its residual is True, not False"),
        (["--hidden", "5"], "its hidden is 5, not 16"),
        (["--seed", "1"], "its seed is 1, not 0"),
    ):
        shutil.rmtree(tmp_path / "models")
        unilaunch([*options, "second", *second], tmp_path).check()
        assert words in unilaunch(["predict", "first"], tmp_path).refusal()
    unilaunch(["predict", "second"], tmp_path).check()


def test_a_resume_that_was_refused_leaves_the_model(tmp_path: Path) -> None:
    """The spec is the refused run's: what only the training depends on has no effect, and precision is the model's."""
    unilaunch([*RUN, "2"], tmp_path).check()
    unilaunch(["predict", "--output", "before.npz"], tmp_path).check()
    other = ["--lr", "0.5", "--seed", "4", "--dropout", "0", "--precision", "float64"]
    assert "--resume" in unilaunch([*RUN, "4", "--resume", *other], tmp_path).refusal()
    unilaunch(["predict"], tmp_path).check()
    before, after = _read(tmp_path / "before.npz"), _read(tmp_path / "predictions.npz")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert "--resume" in unilaunch([*RUN, "4", "--resume", "--bias"], tmp_path).refusal()
    assert "its bias is False, not True" in unilaunch(["predict"], tmp_path).refusal()


def test_a_run_is_found_from_another_folder(tmp_path: Path) -> None:
    """Its data and its model lie where it was started; what is not there is named."""
    unilaunch([*RUN, "2", "--checkpoint-dir", "models"], tmp_path).check()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    unilaunch(["predict", "../log_output"], elsewhere).check()
    assert [path.name for path in elsewhere.iterdir()] == ["predictions.npz"]
    again = ["run", "--config", "log_output/spec.json", "--output-dir", "again", "--resume"]
    assert "resumed after epoch 2" in unilaunch(again, tmp_path).check().console
    (tmp_path / "models").rename(tmp_path / "moved")
    assert "models: no model: there is no such folder" in unilaunch(["predict", "../log_output"], elsewhere).refusal()
