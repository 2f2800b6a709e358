"""Bytes per epoch of two layers, over all ranks: what JittorGeometric's dist_gcn sends beside what unilaunch sends.

    python benchmarks/traffic.py [--parts 2 4 8] [--folder DIR] [--large]

dist_gcn sends every rank's whole feature block to every rank, in each product of each layer, features first. The other
columns are the halo with features first, with weights first (what `run` does in shared memory), that with partial sums
where they are fewer (what `run` does on several hosts), with A_hat X made once (`--dropout 0`), and the columns'
all-to-alls (`--parallel tensor`). With weights first `run` leaves out the rows that no training node's loss reaches.
All are counted on the partitions that `run` makes; for Cora three of them are also what real runs counted. --large adds
the graph in Reddit's shape, whose METIS runs take minutes; --graphs any others.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from graphs import make_large
from mpirun import SHARED, train
from unilaunch_gcn.reach import count_pruned, reached
from unilaunch_graph.arrays import Ids
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.exchange.cover import smallest_cover
from unilaunch_graph.partition.partitioners import assign
from unilaunch_graph.partition.preparation import sends_less_by_columns
from unilaunch_graph.partition.statistics import PartitionStatistics, count

HIDDEN = {"cora": 16, "amazon_photo": 64, "coauthor_cs": 64, "reddit": 16}
COLUMNS = ("broadcast", "features first", "weights first", "rows or sums", "A_hat X once", "by columns", "auto")


def main() -> int:
    """Count, print the table, and return 0 if runs send what was counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--graphs", type=Path, nargs="+", default=[])
    chosen = parser.parse_args()
    sources = {"cora": "cora"}
    sources |= {name: str(SHARED / "graphs" / f"{name}.npz") for name in ("amazon_photo", "coauthor_cs")}
    if chosen.large:
        sources["reddit"] = str(make_large(chosen.folder))
    sources |= {path.stem[:13]: str(path) for path in chosen.graphs}
    print(f"{'MB per epoch':13} parts  " + "  ".join(f"{name:>14}" for name in COLUMNS), flush=True)
    kept = True
    for name, source in sources.items():
        graph = open_dataset(source, SHARED, None, 0, normalize_features=False).load()
        for parts in chosen.parts:
            owner = assign(graph, parts, "nodes").owner
            statistics = count_pruned(graph, owner, count(graph, owner, parts), 2)
            widths = graph.num_features, HIDDEN.get(name, 128), graph.num_classes
            sent = _sent(statistics, widths)
            sent.insert(3, 4 * 2 * _served(graph, owner, parts, widths[1:]))
            print(f"{name:13} {parts:5}  " + "  ".join(f"{one / 1e6:14,.3f}" for one in sent), flush=True)
            if name == "cora":
                kept &= _as_counted(sent, parts)
    return 0 if kept else 1


def _served(graph: Graph, owner: Ids, parts: int, widths: Sequence[int]) -> int:
    """Return the numbers that an epoch sends forward, as rows or partial sums; backward they are as many."""
    every = np.ones(len(graph.indices), np.int8)
    edges = sp.csr_array((every, graph.indices, graph.indptr), shape=(graph.num_nodes, graph.num_nodes))
    levels, sent = reached(graph.split, graph.indptr, graph.indices, len(widths))[1:], 0
    for receiver in range(parts):
        known: dict[bytes, int] = {}
        for width, reads in zip(widths, levels, strict=True):
            targets = np.flatnonzero((owner == receiver) & reads)
            if (key := targets.tobytes()) not in known:
                of_targets = edges[targets].tocsc()
                known[key] = sum(
                    sum(
                        int(side.sum())
                        for side in smallest_cover(of_targets[:, np.flatnonzero(owner == sender)].tocsr())
                    )
                    for sender in range(parts)
                    if sender != receiver
                )
            sent += width * known[key]
    return sent


def _sent(statistics: PartitionStatistics, widths: tuple[int, int, int]) -> list[int]:
    features, hidden, classes = widths
    halo, nodes, parts = int(statistics.halo.sum()), statistics.num_nodes, statistics.num_parts
    every = hidden * 2  # rows forward, gradients backward
    first, last = (
        width * sum(int(traffic.sum()) for traffic in both)
        for width, both in zip((hidden, classes), statistics.exchanged, strict=True)
    )
    columns, moved = 2 * (hidden + classes), 2 * nodes * (parts - 1) // parts
    by_columns = sends_less_by_columns(halo, nodes, parts)
    rows = (
        (parts - 1) * nodes * (features + every), halo * (features + every), first + last, last,
        moved * columns, moved * columns if by_columns else first + last,
    )  # fmt: skip
    return [4 * one for one in rows]


def _as_counted(sent: list[int], parts: int) -> bool:
    kept = True
    for number, options in ((2, []), (4, ["--dropout", "0"]), (5, ["--parallel", "tensor"])):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "planetoid").symlink_to(SHARED.absolute() / "planetoid")
            data = ["--dataset", "cora", "--data-dir", folder]
            counted = train(parts, *data, "--epochs", "2", *options)["bytes_per_epoch"]
        # Columns that do not divide evenly move a little less: what stays on its rank is more.
        kept &= abs(counted - sent[number]) <= (0.1 if number == 5 else 0) * sent[number]
        print(f"{'':13} {'':5}  run {' '.join(options)} counted {counted / 1e6:.3f}", flush=True)
    return kept


if __name__ == "__main__":
    sys.exit(main())
