"""The training of a job is the same on any number of parts and both frameworks; what it sends, and what it keeps."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher, unilaunch
from jobs.trained import Trained, train_cases
from reference import Reference, train_reference
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.data.sources import open_dataset

pytestmark = pytest.mark.xdist_group("training")

SEED, EPOCHS = 3, 60
RANKS = {"torch": 3, "mindspore": 2}
#: Of each case layers, hidden columns, dropout and epochs; without dropout the first layer is aggregated once.
SHAPES = {"float64": (2, 16, 0.5, EPOCHS), "once": (3, 8, 0.0, 15), "wide last but one": (3, 32, 0.3, 15)}
Train = Callable[[str], Mapping[str, Trained]]


@cache
def _reference(data: Path, shape: str) -> Reference:
    graph = open_dataset("cora", data, None, 0, normalize_features=True).load()
    layers, hidden, dropout, epochs = SHAPES[shape]
    return train_reference(graph, [1433, *[hidden] * (layers - 1), 7], epochs=epochs, dropout=dropout, seed=SEED)


@pytest.fixture(scope="module")
def train(openmpi5: Launcher, cora: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train Cora in float32, in float64 and in other shapes: one start for a framework."""
    common = ["--dataset", "cora", "--data-dir", str(cora), "--seed", str(SEED)]
    cases = {"float32": [*common, "--epochs", str(EPOCHS)], "again": [*common, "--epochs", "30"]}
    for name, shape in SHAPES.items():
        options = zip(("--layers", "--hidden", "--dropout", "--epochs"), map(str, shape), strict=True)
        cases[name] = [*common, "--precision", "float64", *(word for option in options for word in option)]

    @cache
    def train(backend: str) -> Mapping[str, Trained]:
        return train_cases(openmpi5, backend, RANKS[backend], cases, tmp_path_factory.mktemp("same"))

    return train


@pytest.mark.parametrize("shape", SHAPES)
def test_float64_equals_the_reference(backend: str, shape: str, train: Train, cora: Path) -> None:
    """Cora, with dropout and L2, in every order of a layer's products: losses, logits and weights to 1e-10."""
    trained, expected = train(backend)[shape], _reference(cora, shape)
    np.testing.assert_allclose(trained.result["loss"], expected.losses, rtol=0, atol=1e-10)
    np.testing.assert_allclose(trained.logits, expected.logits, rtol=0, atol=1e-10)
    for of_rank in trained.weights:
        for weight, first, expected_weight in zip(of_rank, trained.weights[0], expected.weights, strict=True):
            np.testing.assert_array_equal(weight, first)
            np.testing.assert_allclose(weight, expected_weight, rtol=0, atol=1e-10)


def test_float32_has_the_reference_curve_and_is_repeatable(backend: str, train: Train, cora: Path) -> None:
    """To 1e-5, whatever the parts and the framework; the same seed and parts give the same bits."""
    losses = train(backend)["float32"].result["loss"]
    np.testing.assert_allclose(losses, _reference(cora, "float64").losses, rtol=0, atol=1e-5)
    assert train(backend)["again"].result["loss"] == losses[:30]


@pytest.mark.usefixtures("by_numpy")
def test_the_sums_of_both_mpis_are_bit_identical(launcher: Launcher, tmp_path: Path) -> None:
    """On three ranks, whose numbers can be added in several orders."""
    arguments = ["run", "--data-dir", "data", "--epochs", "30"]
    first, second = (launcher.unilaunch(3, arguments, tmp_path).check().result["loss"] for _ in range(2))
    assert first == second


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("more", ["--use-gdc", "--conv sage --bias --layer-norm --dropout 0"])
def test_columns_give_the_curve_of_nodes(openmpi5: Launcher, more: str, tmp_path: Path) -> None:
    """Three ranks, seven hidden columns and seven classes: nothing divides evenly, and the training is the same."""
    draw = np.random.default_rng(0)
    x = draw.random((140, 20), dtype=np.float32)
    np.savez(tmp_path / "seven.npz", edge_index=draw.integers(0, 140, (2, 500)), x=x, y=np.arange(140) % 7)
    words = (
        f"run --dataset seven.npz --data-dir data --precision float64 --epochs 6 --hidden 7 --layers 3 {more}".split()
    )
    one = openmpi5.unilaunch(1, words, tmp_path).check().result
    three = openmpi5.unilaunch(3, [*words, "--parallel", "tensor"], tmp_path).check().result
    np.testing.assert_allclose(three["loss"], one["loss"], rtol=0, atol=1e-10)
    assert three["test_accuracy"] == one["test_accuracy"]
    auto = ["--num-parts", "4", "--parallel", "auto", "--partition-dir", "parts"]
    assert "by columns" in unilaunch(["partition", "--dataset", "seven.npz", *auto], tmp_path).check().stderr


#: Options, and the columns of each layer that travel, forward and backward. A layer that widens (5 to 7) is aggregated
#: before its product.
WIDTHS = {
    "two": ([], [(16, 16), (7, 7)]),
    "once": (["--dropout", "0"], [(0, 0), (7, 7)]),
    "narrow": (["--layers", "3", "--hidden", "5"], [(5, 5), (5, 5), (5, 5)]),
}


def _sent(graph: Graph, folder: Path, columns: Sequence[tuple[int, int]]) -> int:
    """Count, from the graph and who owns what, the numbers that travel in an epoch; nothing of the project's plan.

    Forward a layer needs the neighbours of the rows that leave it, backward these rows themselves, wherever a
    neighbour is. At the end these are the training nodes; where more than half of all rows are needed, all are.
    """
    owner = np.empty(graph.num_nodes, np.int64)
    for part in folder.glob("part.*"):
        owner[np.load(part / "owned.npy")] = int(part.name.removeprefix("part."))
    near = [graph.indices[graph.indptr[node] : graph.indptr[node + 1]] for node in range(graph.num_nodes)]
    leaving, sent = set(np.flatnonzero(graph.split == TRAIN).tolist()), 0
    for forward, backward in reversed(columns):
        leaving = leaving if 2 * len(leaving) <= graph.num_nodes else set(range(graph.num_nodes))
        needed = {(owner[node], other) for node in leaving for other in near[node].tolist()}
        wanted = {(owner[other], node) for node in leaving for other in near[node].tolist()}
        for width, rows in ((forward, needed), (backward, wanted)):
            sent += width * sum(int(owner[node] != part) for part, node in rows)
        leaving = leaving | {node for _, node in needed}
    return sent


def test_bytes_are_halo_rows_times_width(openmpi5: Launcher, cora: Path, tmp_path: Path) -> None:
    """Bytes of an epoch = sum over layers and directions of the halo rows that the loss reaches x width x 4."""
    common = ["--dataset", "cora", "--data-dir", str(cora), "--epochs", "2", "--partition-dir", "partitions"]
    cases = {name: [*common, *options] for name, (options, _) in WIDTHS.items()}
    trained = train_cases(openmpi5, "torch", 3, cases, tmp_path)
    graph = open_dataset("cora", cora, None, 0, normalize_features=True).load()
    (partition,) = (tmp_path / "partitions").glob("cora-[0-9]*")
    for name, (_, columns) in WIDTHS.items():
        assert trained[name].result["bytes_per_epoch"] == 4 * _sent(graph, partition, columns), name


@pytest.mark.usefixtures("by_numpy")
def test_memory_does_not_grow_with_the_other_parts(openmpi5: Launcher, tmp_path: Path) -> None:
    """Four times the graph (a ring) on four times the ranks: a rank holds what it held."""
    peaks = {}
    for ranks in (2, 8):
        ring = np.arange(8_000 * ranks)
        x = np.random.default_rng(0).standard_normal((len(ring), 256), dtype=np.float32)
        np.savez(tmp_path / f"{ranks}.npz", edge_index=np.stack([ring, np.roll(ring, -1)]), x=x, y=ring % 4)
        arguments = ["--dataset", f"{ranks}.npz", "--data-dir", "data", "--num-parts", str(ranks)]
        unilaunch(["partition", *arguments], tmp_path).check()
        job = openmpi5.unilaunch(ranks, ["run", "--epochs", "3", *arguments], tmp_path).check()
        # Not rank 0's, which has hashed the whole graph's file to find the partition.
        peaks[ranks] = max(rank["peak_memory_bytes"] for rank in job.result["ranks"][1:])
    own_share = 8_000 * 256 * 4
    assert peaks[8] < peaks[2] + own_share


def test_rows_of_other_processes_arrive_through_shared_memory(openmpi5: Launcher, tmp_path: Path) -> None:
    """Of buffers that grow, in 200 exchanges, each with other rows."""
    job = openmpi5.run(3, [str(Path(__file__).parent / "programs" / "shared_halo.py")], tmp_path).check()
    assert sorted(job.stdout.splitlines()) == [f"rank {rank}: 200 exchanges" for rank in range(3)]


@pytest.mark.usefixtures("by_numpy")  # every backend's epoch is traced by the same lines
def test_each_rank_has_a_trace(openmpi5: Launcher, tmp_path: Path) -> None:
    options = ["--epochs", "2", "--eval-every", "2", "--checkpoint-every", "2", "--data-dir", "data", "--trace"]
    openmpi5.unilaunch(2, ["run", *options], tmp_path).check()
    for rank in range(2):
        events = json.loads((tmp_path / "log_output" / f"rank.{rank}" / "trace.json").read_text())["traceEvents"]
        assert {event["pid"] for event in events} == {rank}
        spans = {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X"}
        inner = {"forward and backward", "all-reduce", "optimizer"}
        assert spans.keys() == inner | {
            "build network", "halo exchange", "evaluation", "checkpoint", "epoch 1", "epoch 2"
        }  # fmt: skip
        for name in inner:  # the last of them lies in the last epoch
            assert spans["epoch 2"][0] - 1 <= spans[name][0] <= spans[name][1] <= spans["epoch 2"][1] + 1, name
