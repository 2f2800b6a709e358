"""How good the partitions are: halo rows of three ways to cut, and edges of the fullest part, balanced or not.

    python benchmarks/quality.py [--parts 2 4 8] [--folder DIR]

unilaunch asks METIS for the least communication volume, k-way, and for the least cut, and keeps the smaller halo;
beside it pymetis' defaults, and parts drawn at random. Halo rows are given as a share of the nodes.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pymetis
from numpy.typing import NDArray

from graphs import make_graph
from mpirun import SHARED
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.partition.assign import assign, halo_size


def main() -> int:
    """Cut, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    sources = {
        "cora": "cora", "sbm": "sbm", "communities": str(make_graph(chosen.folder)),
        **{path.stem: str(path) for path in sorted((SHARED / "graphs").glob("*.npz"))},
    }  # fmt: skip
    heads = ("unilaunch", "pymetis", "random", "edges, fullest / mean", "the same, --balance edges")
    print(f"{'graph':14} parts  " + "  ".join(f"{head:>12}" for head in heads), flush=True)
    worse = 0
    for name, source in sources.items():
        graph = open_dataset(source, SHARED, None, 0, normalize_features=False).load()
        for parts in chosen.parts:
            ours, by_edges = (assign(graph, parts, balance) for balance in ("nodes", "edges"))
            _, theirs = pymetis.part_graph(parts, pymetis.CSRAdjacency(graph.indptr, graph.indices))
            drawn = np.random.default_rng(0).integers(0, parts, graph.num_nodes)
            halos = [halo_size(graph, np.asarray(owner), parts) / graph.num_nodes for owner in (ours, theirs, drawn)]
            fullest = [_fullest(np.bincount(owner, graph.degrees, parts)) for owner in (ours, by_edges)]
            worse += halos[0] > halos[1]
            print(f"{name:14} {parts:5}  " + "  ".join(f"{one:12.3f}" for one in (*halos, *fullest)), flush=True)
    print(f"worse than pymetis' defaults: {worse}")
    return 0


def _fullest(edges: NDArray[Any]) -> float:
    return float(edges.max() / edges.mean())


if __name__ == "__main__":
    sys.exit(main())
