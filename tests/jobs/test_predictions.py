"""What `plan` says of a run, and what a run leaves: two models, and predictions of all nodes in the user's order."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from jobs.conftest import LAUNCHERS, find_launcher
from jobs.mpirun import Launcher, unilaunch

pytestmark = pytest.mark.usefixtures("by_numpy")

LABELS = {
    "classes": np.arange(90) % 3,
    "multilabel": (np.random.default_rng(1).random((90, 4)) < 0.4).astype(np.uint8),
    "regression": np.random.default_rng(1).random((90, 2)).astype(np.float32),
}
SAGE = ["--conv", "sage", "--bias"]
SOME = np.arange(90) < 20
NONE = SOME & ~SOME
RUN = ["run", "--dataset", "graph.npz", "--data-dir", "data", "--epochs"]


def _graph(labels: NDArray[Any] = LABELS["classes"]) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {"edge_index": draw.integers(0, 90, (2, 300)), "x": draw.random((90, 6), np.float32), "y": labels}


@pytest.fixture(autouse=True)
def _graph_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", **_graph())


@pytest.mark.parametrize(("task", "conv"), [
    ("classes", SAGE), ("multilabel", ["--conv", "gat", "--heads", "4", "--hidden", "4", "--bias"]),
    ("regression", SAGE),
])  # fmt: skip
def test_a_model_says_the_same_anywhere(openmpi5: Launcher, task: str, conv: list[str], tmp_path: Path) -> None:
    """In the run, in one process and on three ranks; and the best model is that of the lowest validation loss."""
    np.savez(tmp_path / "graph.npz", **_graph(LABELS[task]))
    options = ["--task", task, "--lr", "0.1", "--eval-every", "1", "--save-predictions", *conv]
    result = openmpi5.unilaunch(2, [*RUN, "12", *options], tmp_path).check().result
    best_model = tmp_path / "log_output" / "checkpoints" / "best.safetensors"
    with safe_open(best_model, "numpy") as best:
        history = best.metadata()["unilaunch"]
    lowest = min(result["evaluations"], key=lambda one: one["val_loss"])
    assert f'"epoch": {lowest["epoch"]},' in history
    of_run = dict(np.load(tmp_path / "log_output" / "predictions.npz"))
    best_model.unlink()  # predict takes the last model then, as the run does
    unilaunch(["predict", "log_output", "--embeddings", "--output", "one.npz"], tmp_path).check()
    openmpi5.unilaunch(3, ["predict", "log_output", "--output", "three.npz"], tmp_path).check()
    one, three = (dict(np.load(tmp_path / name)) for name in ("one.npz", "three.npz"))
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
    """No model, other features, another content of the data set, no run, no file to write; labels do not matter."""
    unilaunch([*RUN, "2", "--no-save-model"], tmp_path).check()
    assert "no model" in unilaunch(["predict", "log_output"], tmp_path).refusal()
    unilaunch([*RUN, "2"], tmp_path).check()
    np.savez(tmp_path / "narrow.npz", **_graph() | {"x": np.ones((90, 5), np.float32)})
    np.savez(tmp_path / "two.npz", **_graph(np.arange(90) % 2))  # one of the model's classes is not in this graph
    unilaunch(["predict", "--dataset", "two.npz"], tmp_path).check()
    assert np.load(tmp_path / "predictions.npz")["scores"].shape == (90, 3)
    np.savez(tmp_path / "graph.npz", **_graph(np.roll(LABELS["classes"], 1)))
    unilaunch(["predict"], tmp_path).check()
    np.savez(tmp_path / "graph.npz", **_graph() | {"x": np.ones((90, 6), np.float32)})
    for line, words in (
        ("log_output --dataset narrow.npz", "5 features, but the model was trained on 6"),
        ("log_output", "another content"), ("nothing", "nothing/spec.json: cannot be read"),
        *((f"--output {output}", f"--output {output}: expected the name of a file") for output in (".", "missing/o")),
    ):  # fmt: skip
        assert words in unilaunch(["predict", *line.split()], tmp_path).refusal()
    unilaunch(["predict", "--dataset", "graph.npz"], tmp_path).check()  # it is named: another content is meant


def test_predictions_need_no_labels(tmp_path: Path) -> None:
    """Nor do other labels, more classes or a split of its own matter; a training needs some labels, and one split."""
    graph = _graph()
    unilaunch([*RUN, "2", "--conv", "sage", "--save-predictions", "--split-seed", "3"], tmp_path).check()
    (tmp_path / "log_output" / "checkpoints" / "best.safetensors").unlink()
    expected = np.load(tmp_path / "log_output" / "predictions.npz")
    without = {name: array for name, array in graph.items() if name != "y"}
    for name, arrays, split in (
        ("no_y", without, 0), ("unknown", without | {"y": np.full(90, -1)}, 0),
        ("test", graph | {"train_mask": NONE, "val_mask": SOME, "test_mask": ~SOME}, np.where(SOME, 2, 3)),
        ("more", _graph(np.arange(90) % 5), None), ("regression", _graph(LABELS["regression"]), None),
    ):  # fmt: skip
        np.savez(tmp_path / f"{name}.npz", **arrays)
        unilaunch(["predict", "--dataset", f"{name}.npz", "--output", "out.npz"], tmp_path).check()
        found = np.load(tmp_path / "out.npz")
        np.testing.assert_allclose(found["scores"], expected["scores"], rtol=0, atol=1e-5)
        assert split is None or (found["split"] == split).all()
    for command, words in (
        ("plan --num-parts 2 --dataset no_y.npz", "no_y.npz: no node to train on"),
        ("run --output-dir none --dataset no_y.npz", "no_y.npz: no node to train on"),
        ("run --output-dir none --split-seed 3 --dataset test.npz", "split_seed=3 draws none"),
    ):
        assert words in unilaunch([*command.split(), "--data-dir", "data"], tmp_path).refusal()


def test_a_best_model_that_is_gone_is_said(tmp_path: Path) -> None:
    """Where a run resumes, and where the last model is taken; not where none was to be kept, or none was validated."""
    np.savez(tmp_path / "no_val.npz", **_graph() | {"train_mask": SOME, "val_mask": NONE, "test_mask": ~SOME})
    best = tmp_path / "log_output" / "checkpoints" / "best.safetensors"

    def console(words: str) -> str:
        return unilaunch(words.replace("train", " ".join(RUN)).split(), tmp_path).check().console

    resume = "--resume --eval-every 1 --lr 1e-12"
    console(f"train 1 {resume} --no-save-model --checkpoint-every 1")
    assert "so far is gone" not in console(f"train 2 {resume} --no-save-model --checkpoint-every 1")
    assert "the best model so far is gone" in console(f"train 3 {resume}")
    best.write_bytes(b"damaged")
    assert f"{best}: damaged: " in console(f"train 4 {resume}")
    best.unlink()
    assert "best.safetensors, is not there" in console("predict")
    for dataset in ("graph.npz", "no_val.npz"):
        console(f"train 1 --dataset {dataset}")
        assert "so far is gone" not in console(f"train 2 --dataset {dataset} --resume")
        assert "is not there" not in console("predict")


def test_a_model_of_another_run_is_refused(tmp_path: Path) -> None:
    """It lies where the run had its own. A resume that was refused leaves the model, though the spec is its own."""
    unilaunch([*RUN, "2"], tmp_path).check()
    unilaunch(["predict", "--output", "before.npz"], tmp_path).check()
    other = ["--lr", "0.5", "--seed", "4", "--dropout", "0", "--precision", "float64"]  # the training's alone
    assert "--resume" in unilaunch([*RUN, "4", "--resume", *other], tmp_path).refusal()
    unilaunch(["predict"], tmp_path).check()
    before, after = np.load(tmp_path / "before.npz"), np.load(tmp_path / "predictions.npz")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    options = [*RUN, "2", "--checkpoint-dir", "models", "--output-dir"]
    unilaunch([*options, "first"], tmp_path).check()
    for second, words in (("--bias", "its bias is True, not False"), ("--seed 1", "its seed is 1, not 0")):
        shutil.rmtree(tmp_path / "models")
        unilaunch([*options, "second", *second.split()], tmp_path).check()
        assert words in unilaunch(["predict", "first"], tmp_path).refusal()
    (elsewhere := tmp_path / "elsewhere").mkdir()  # data and model lie where the run was started
    unilaunch(["predict", "../second"], elsewhere).check()
    assert [path.name for path in elsewhere.iterdir()] == ["predictions.npz"]


#: Few training nodes.
FEW = {"train_mask": np.arange(239) < 6, "val_mask": np.arange(239) >= 200, "test_mask": np.zeros(239, bool)}


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
    np.savez(tmp_path / "directed.npz", edge_index=edges, x=x, y=np.arange(239) % 3, **masks)
    common = ["--dataset", "directed.npz", "--data-dir", "data"]
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
def test_a_plan_that_is_refused(arguments: str, words: str, tmp_path: Path) -> None:
    assert words in unilaunch(["plan", *arguments.split()], tmp_path).refusal()
