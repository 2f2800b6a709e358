"""The trainings of the README under a real mpirun: the GCN, also on graphs unlike the tutorials', and MNIST."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.idx import first_images
from jobs.mpirun import Launcher
from jobs.trained import train_cases
from reference import train_reference
from unilaunch_graph.data.sources import open_dataset

pytestmark = pytest.mark.xdist_group("main job")

DEVICE_PATH = str(Path(__file__).parent / "programs" / "device_path.py")
#: Fields of the result that docs/reference/files.md names.
PROMISED = {
    "backend", "device", "world_size", "dataset", "epochs", "loss", "train_accuracy", "val_accuracy",
    "test_accuracy", "seconds_per_epoch", "compute_seconds", "communication_seconds", "bytes_per_epoch", "versions",
}  # fmt: skip


def test_defaults_end_with_a_readable_summary(launcher: Launcher, tmp_path: Path) -> None:
    """What a reader looks for, each promised field, and every rank's log, with the tutorial's option for mpirun."""
    options = ("--output-filename", "log_output")
    job = launcher.unilaunch(2, ["run", "--data-dir", "data"], tmp_path, options=options).check()
    for word in ("loss", "seconds per epoch", "log_output/rank.*/", "accuracy"):
        assert word in job.stdout
    assert job.stdout.count("accuracy") == 1  # Open MPI 5 writes what ranks print to its files only
    assert [f"part {rank}: " in job.said(rank, "stderr") for rank in range(2)] == [True, True]
    assert (job.result["backend"], job.result["epochs"], job.result["test_accuracy"] > 0.7) == ("torch", 200, True)
    assert set(job.result) >= PROMISED
    seconds = job.result["communication_seconds"] + job.result["compute_seconds"]
    assert seconds == pytest.approx(job.result["seconds_per_epoch"])


def test_device_network_trains_as_the_host_network(openmpi5: Launcher, tmp_path: Path) -> None:
    """What runs between devices runs for real over gloo: losses to 1e-10, for each order of the layers' products."""
    assert "lo the same" in openmpi5.unilaunch(3, ["run", DEVICE_PATH], tmp_path).check().stdout


RING = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 0]])
GIVEN = [[0, 1, 2, 2, 2, 5, 6, 7, 7, 1, 3], [1, 0, 3, 3, 2, 4, 5, 0, 6, 2, 4]]


def _graph(edges: Any, y: Any, train: list[int], **more: Any) -> dict[str, Any]:
    used = np.isin(np.arange(len(y)), train)
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


def test_unlike_graphs_train_exactly(openmpi5: Launcher, tmp_path: Path) -> None:
    """Losses and logits on three ranks equal the dense reference's to 1e-10; an empty split has no accuracy."""
    common = ["--precision", "float64", "--epochs", "12", "--hidden", "4", "--normalize-features"]
    for case, arrays in GRAPHS.items():
        np.savez(tmp_path / f"{case}.npz", **arrays)
    cases = {case: [*common, "--dataset", f"{case}.npz"] for case in GRAPHS}
    for case, trained in train_cases(openmpi5, "torch", 3, cases, tmp_path).items():
        data = open_dataset(str(tmp_path / f"{case}.npz"), None, None, 0, normalize_features=True)
        graph = data.load().symmetrised()[0]
        expected = train_reference(graph, [6, 4, graph.num_classes], epochs=12, dropout=0.5, seed=0)
        for found, right in ((trained.result["loss"], expected.losses), (trained.logits, expected.logits)):
            np.testing.assert_allclose(found, right, rtol=0, atol=1e-10, err_msg=case)
        empty = [trained.result[f"{split}_accuracy"] is None for split in ("test", "val")]
        assert empty == [True, case in {"no validation nodes", "more ranks than nodes"}], case


@pytest.fixture(scope="module")
def mnist() -> Path:
    """The folder of the real files."""
    folder = Path(__file__).parents[2].parent / "shared" / "datasets" / "mnist"
    return folder if folder.is_dir() else pytest.skip(f"no MNIST files at {folder}")


def test_one_epoch_of_mnist_passes_90_percent(openmpi5: Launcher, mnist: Path, tmp_path: Path) -> None:
    """The defaults are the tutorial's, as is the epoch, on two ranks."""
    result = openmpi5.unilaunch(2, ["run", "mnist", "--data-dir", str(mnist)], tmp_path).check().result
    assert (result["backend"], result["test_accuracy"] > 0.90) == ("torch", True)
    assert [result[name] for name in ("num_train", "num_test", "batch_size", "epochs")] == [60_000, 10_000, 32, 1]
    assert len(result["step_loss"]) == 94  # every tenth of 938


@pytest.mark.mindspore
def test_mnist_has_one_curve(openmpi5: Launcher, mnist: Path, tmp_path: Path) -> None:
    """On both frameworks, and any ranks with one global batch: each loss to 1e-5. --data-dir wins over DATA_PATH."""
    first_images(mnist, tmp_path / "even", {"train": 6000, "test": 1000})  # which two ranks divide evenly
    results = []
    for backend, ranks, batch in (("torch", 2, "32"), ("mindspore", 2, "32"), ("torch", 1, "64")):
        words = ["run", "mnist", "--backend", backend, "--data-dir", "even", "--batch-size", batch]
        job = openmpi5.unilaunch(ranks, words, tmp_path, variables={"DATA_PATH": "nowhere"})
        results.append(job.check().result)
    for other in results[1:]:
        for name, limit in (("step_loss", 1e-5), ("loss", 1e-5), ("test_accuracies", 1e-3)):
            np.testing.assert_allclose(other[name], results[0][name], rtol=0, atol=limit)
