"""The bytes, files and memory of a rank: exactly its halo, only its part, and nothing of the others; its timeline."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher, unilaunch
from jobs.trained import train_cases
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.data.sources import open_dataset

pytestmark = pytest.mark.xdist_group("traffic")

#: Options, and the columns of each layer that travel, forward and backward. A layer that widens (5 to 7) is aggregated
#: before its product; without dropout the first layer is aggregated once.
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
def test_the_ranks_traces_fit_together(openmpi5: Launcher, tmp_path: Path) -> None:
    """One clock, one process a rank; what is inside an epoch lies inside it."""
    options = ["--epochs", "5", "--eval-every", "5", "--checkpoint-every", "5", "--data-dir", "data", "--trace"]
    openmpi5.unilaunch(2, ["run", *options], tmp_path).check()
    all_epochs = []
    for rank in range(2):
        events = json.loads((tmp_path / "log_output" / f"rank.{rank}" / "trace.json").read_text())["traceEvents"]
        assert {event["pid"] for event in events} == {rank}
        spans = [(one["name"], one["ts"], one["ts"] + one["dur"]) for one in events if one["ph"] == "X"]
        inner = {"forward and backward", "all-reduce", "optimizer"}
        others = {"build network", "halo exchange", "evaluation", "checkpoint"}
        assert {name for name, *_ in spans} == inner | others | {f"epoch {epoch}" for epoch in range(1, 6)}
        epochs = [(begin, end) for name, begin, end in spans if name.startswith("epoch")]
        assert all(first[1] <= second[0] + 1 for first, second in pairwise(epochs))
        for name, begin, end in spans:
            assert name not in inner or any(first - 1 <= begin and end <= last + 1 for first, last in epochs), name
        all_epochs.append(epochs)
    for one, other in zip(*all_epochs, strict=True):  # an all-reduce in each: no rank ends it before all have begun it
        assert max(one[0], other[0]) <= min(one[1], other[1]) + 1000
