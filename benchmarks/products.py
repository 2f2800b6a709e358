"""The two sparse products of the host beside each other: FBGEMM's and SciPy's, float32, on one thread.

    python benchmarks/products.py [--folder DIR]

The graph of epoch.py, whole, nodes in the order that a part has; in turn, medians of 7. Bound: FBGEMM takes at most
half.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from graphs import make_graph
from mpirun import verdict
from unilaunch_graph.data.edges import csr_matrix
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.operators import fbgemm
from unilaunch_graph.partition.cut import split_parts
from unilaunch_graph.partition.order import order_nodes


def main() -> int:
    """Measure, print, and return 0 if the bound is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    torch.set_num_threads(1)
    path = make_graph(parser.parse_args().folder)
    graph = open_dataset(str(path), None, None, 0, normalize_features=False).load()
    part = next(split_parts(graph, order_nodes(graph, np.zeros(graph.num_nodes, np.int64), 1)))
    ones = np.ones(len(part.owned_indices), np.float32)
    scipy = csr_matrix(ones, part.owned_indices, part.owned_indptr, part.num_owned)
    multiply = fbgemm.product(part.owned_indptr.astype(np.int32), part.owned_indices, None)
    kept = True
    for width in (128, 40, 16):
        rows = np.random.default_rng(0).random((part.num_owned, width), np.float32)
        taken: dict[str, list[float]] = {"FBGEMM": [], "SciPy": []}
        for _ in range(8):
            for name, product in (("FBGEMM", multiply), ("SciPy", scipy.__matmul__)):
                begin = time.perf_counter()
                product(rows)
                taken[name].append(time.perf_counter() - begin)
        ours, theirs = (statistics.median(times[1:]) for times in taken.values())
        print(
            f"{len(ones):,} entries, {width} wide: FBGEMM {ours * 1e3:.1f} ms, SciPy {theirs * 1e3:.1f} ms", flush=True
        )
        kept &= verdict("FBGEMM / SciPy", ours / theirs, 0.5)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
