"""The bytes, files and memory of a rank: exactly its halo, only its part, and nothing of the others."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from jobs.mpirun import Launcher, unilaunch
from jobs.trained import Trained, train_cases
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.data.sources import open_dataset

pytestmark = pytest.mark.xdist_group("traffic")

#: Options, and the columns of each layer that travel: forward and backward.
WIDTHS = {
    "two layers": ([], [(16, 16), (7, 7)]),
    "the first aggregated once": (["--dropout", "0"], [(0, 0), (7, 7)]),
    "a narrow hidden layer": (["--layers", "3", "--hidden", "5"], [(5, 5), (5, 5), (5, 5)]),
}
Trainings = Mapping[str, Trained]


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


@pytest.fixture(scope="module")
def trained(openmpi5: Launcher, cora: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainings, Path]:
    """Train Cora in all widths in one start; return also the folder with the partition."""
    folder = tmp_path_factory.mktemp("traffic")
    common = ["--dataset", "cora", "--data-dir", str(cora), "--epochs", "2", "--partition-dir", "partitions"]
    cases = {name: [*common, *options] for name, (options, _) in WIDTHS.items()}
    trained = train_cases(openmpi5, "torch", 3, cases, folder)
    return trained, next((folder / "partitions").glob("cora-[0-9]*"))


@pytest.mark.parametrize("width", WIDTHS)
def test_bytes_are_halo_rows_times_width(width: str, trained: tuple[Trainings, Path], cora: Path) -> None:
    """Bytes of an epoch = sum over layers and directions of the halo rows that the loss reaches x width x 4.

    A layer that widens (5 to 7) is aggregated before its product: 5 columns travel in each direction.
    """
    trainings, partition = trained
    graph = open_dataset("cora", cora, None, 0, normalize_features=True).load()
    assert trainings[width].result["bytes_per_epoch"] == 4 * _sent(graph, partition, WIDTHS[width][1])


def _write_graph(path: Path, num_nodes: int) -> None:
    """Write a ring of nodes with 256 dense features: each part's share is the same for any number of nodes a part."""
    draw = np.random.default_rng(0)
    ring = np.arange(num_nodes)
    features: NDArray[np.float32] = draw.standard_normal((num_nodes, 256), dtype=np.float32)
    np.savez(path, edge_index=np.stack([ring, np.roll(ring, -1)]), x=features, y=ring % 4)


@pytest.mark.usefixtures("by_numpy")
def test_memory_does_not_grow_with_the_other_parts(openmpi5: Launcher, tmp_path: Path) -> None:
    """Four times the graph on four times the ranks: a rank holds what it held."""
    peaks = {}
    for ranks in (2, 8):
        _write_graph(tmp_path / f"{ranks}.npz", 8_000 * ranks)
        arguments = ["--dataset", f"{ranks}.npz", "--data-dir", "data", "--num-parts", str(ranks)]
        unilaunch(["partition", *arguments], tmp_path).check()
        job = openmpi5.unilaunch(ranks, ["run", "--epochs", "3", *arguments], tmp_path).check()
        # Not rank 0's, which has hashed the whole graph's file to find the partition.
        peaks[ranks] = max(rank["peak_memory_bytes"] for rank in job.result["ranks"][1:])
    own_share = 8_000 * 256 * 4
    assert peaks[8] < peaks[2] + own_share
