"""How good the partitions are: halo rows of the partitioners, beside METIS as it comes and parts drawn at random.

    python benchmarks/quality.py [--parts 2 4 8] [--graphs amazon_photo coauthor_cs communities ...] [--folder DIR]

`auto` is what unilaunch[partition] gives, `metis` without it; with --balance nodes, and edges. Halo rows are given as a
share of the nodes, the fullest part's edges as a share of the mean; seconds are processor time, with --balance edges.
Bounds, with --balance edges, means over Amazon Photo, Coauthor CS and the generated communities `sbm`: the halo is at
most 0.92 of METIS's, and the fullest part has at most 1.01 times the edges of METIS's.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymetis
from numpy.typing import NDArray

from graphs import make_graph
from mpirun import SHARED, verdict
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.partition.assign import assign
from unilaunch_graph.partition.mtkahypar import MtKaHyPar
from unilaunch_graph.partition.statistics import halo_size

#: The graphs of the bounds.
JUDGED = ("amazon_photo", "coauthor_cs", "sbm")


class Cut(NamedTuple):
    """A partition: halo rows for each node, edges of the fullest part over the mean, seconds of the processor."""

    halo: float
    fullest: float
    seconds: float


def main() -> int:
    """Cut, print the table, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--graphs", nargs="+", default=["cora", *JUDGED, "communities"])
    parser.add_argument("--data-dir", type=Path, default=SHARED)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    MtKaHyPar.work = (0, 4_000_000)  # on small graphs too, on which auto saves its time
    heads = (
        "metis",
        "auto",
        "edges",
        "edges",
        "metis",
        "auto",
        "edges",
        "edges",
        "s metis",
        "s auto",
        "pymetis",
        "random",
    )
    print(f"{'':19}  {'balance nodes':>34}  {'balance edges':>34}")
    print(f"{'graph':13} parts  " + " ".join(f"{head:>8}" for head in heads), flush=True)
    halos, edges = [], []
    for name in chosen.graphs:
        graph = _open(name, chosen)
        for parts in chosen.parts:
            by_nodes, by_edges = (
                [_cut(graph, parts, balance, one) for one in ("metis", "auto")] for balance in ("nodes", "edges")
            )
            figures = [
                figure
                for pair in (by_nodes, by_edges)
                for figure in (*(x.halo for x in pair), *(x.fullest for x in pair))
            ]
            figures += [by_edges[0].seconds, by_edges[1].seconds, *_others(graph, parts)]
            print(f"{name:13} {parts:5}  " + " ".join(f"{figure:8.3f}" for figure in figures), flush=True)
            if name in JUDGED:
                halos.append(by_edges[1].halo / by_edges[0].halo)
                edges.append(by_edges[1].fullest / by_edges[0].fullest)
    kept = verdict("halo / METIS's, mean", statistics.mean(halos), 0.92)
    return 0 if verdict("edges of the fullest part / METIS's, mean", statistics.mean(edges), 1.01) and kept else 1


def _open(name: str, chosen: argparse.Namespace) -> Graph:
    path = chosen.data_dir / "graphs" / f"{name}.npz"
    source = str(make_graph(chosen.folder)) if name == "communities" else str(path) if path.exists() else name
    return open_dataset(source, chosen.data_dir, None, 0, normalize_features=False).load().symmetrised()[0]


def _cut(graph: Graph, parts: int, balance: str, partitioner: str) -> Cut:
    begin = time.process_time()
    owner = assign(graph, parts, balance, partitioner).owner
    seconds = time.process_time() - begin
    edges = np.bincount(owner, graph.degrees, parts)
    return Cut(halo_size(graph, owner, parts) / graph.num_nodes, float(edges.max() / edges.mean()), seconds)


def _others(graph: Graph, parts: int) -> list[float]:
    """Return the halo of METIS with pymetis' defaults, and of parts drawn at random."""
    theirs = pymetis.part_graph(parts, pymetis.CSRAdjacency(graph.indptr, graph.indices))[1]
    drawn: NDArray[np.int64] = np.random.default_rng(0).integers(0, parts, graph.num_nodes)
    return [halo_size(graph, np.asarray(owner, np.int64), parts) / graph.num_nodes for owner in (theirs, drawn)]


if __name__ == "__main__":
    sys.exit(main())
