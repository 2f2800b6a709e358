"""What sums that several nodes share would save in a product over the edges; unilaunch does not make them.

    python benchmarks/shared_sums.py [--graphs cora amazon_photo coauthor_cs communities] [--folder DIR]

Two neighbours that many nodes have in common can be added once, and each of these nodes reads the sum ("hierarchically
aggregated graphs", Jia et al., KDD 2020). They are chosen as there: the pair that most nodes share first, sums are
paired too, and there are at most a quarter as many sums as nodes. `communities` is the graph of epoch.py with 10,000
nodes. `rows`: rows that a product reads, or writes for a sum. `ms`: of a product by the kernels in C, 128 wide, on one
thread, least of 200; all sums are made in one pass, as if none needed another. Bound: the gain in time is less than
1.3, so that native code for them is not worth its lines.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from graphs import make_graph
from mpirun import SHARED, verdict
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.kernels.library import load_library
from unilaunch_graph.kernels.native import NativeKernels
from unilaunch_graph.partition.cut import order_nodes

WIDTH, ROUNDS = 128, 200
#: A sum that so many nodes read moves as many rows as it saves: two are read for it, and it is written.
_BREAK_EVEN = 3
#: Of the pairs of neighbours, those that most nodes share; more would not be used.
_PAIRS = 300_000
#: Minus the number of nodes that share two neighbours, and these.
Pair = tuple[int, int, int]


def main() -> int:
    """Count and measure, print, and return 0 if the bound is kept on every graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=["cora", "amazon_photo", "coauthor_cs", "communities"])
    parser.add_argument("--data-dir", type=Path, default=SHARED)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    library = load_library()
    if library is None:
        print("no C compiler: there is nothing to measure", file=sys.stderr)
        return 1
    kept = True
    for name in chosen.graphs:
        path = chosen.data_dir / "graphs" / f"{name}.npz"
        made = str(make_graph(chosen.folder, 10_000)) if name == "communities" else str(path) if path.exists() else name
        adjacency = _in_order(open_dataset(made, chosen.data_dir, None, 0, normalize_features=False).load())
        pairs, left = _share(adjacency)
        plain = [
            adjacency.indices[begin:end] for begin, end in zip(adjacency.indptr, adjacency.indptr[1:], strict=False)
        ]
        least = _least_seconds(NativeKernels(library, 1), plain, [*pairs, *left])
        rows = adjacency.nnz, sum(map(len, left)) + _BREAK_EVEN * len(pairs)
        print(
            f"{name}: {len(plain):,} nodes, {len(pairs):,} sums: rows {rows[0]:,} and {rows[1]:,}, "
            f"{least[0] * 1e3:.3f} and {least[1] * 1e3:.3f} ms",
            flush=True,
        )
        kept &= verdict("time without sums / with them", least[0] / least[1], 1.3)
    return 0 if kept else 1


def _in_order(graph: Graph) -> sp.csr_array:
    """Return the graph's matrix, symmetric, its nodes in the order of a part."""
    graph = graph.symmetrised()[0]
    nodes = order_nodes(graph, np.zeros(graph.num_nodes, np.int64), 1).nodes
    return graph.adjacency()[nodes][:, nodes].tocsr()


def _share(adjacency: sp.csr_array) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """Return for each sum the two rows that it adds, and for each node the rows that it then reads."""
    reads = [set(row.tolist()) for row in np.split(adjacency.indices, adjacency.indptr[1:-1])]
    readers, made = [set(row) for row in reads], list[Sequence[int]]()
    pairs = _pairs(adjacency)
    heapify(pairs)
    while len(made) < len(reads) // 4 and (best := _best(pairs, readers)):
        common, beside = readers[best[0]] & readers[best[1]], Counter[int]()
        for node in best:
            readers[node] -= common
        for node in common:
            reads[node].difference_update(best)
            beside.update(reads[node])
            reads[node].add(len(readers))
        for other, times in beside.items():
            if times > _BREAK_EVEN:
                heappush(pairs, (-times, other, len(readers)))
        readers.append(common)
        made.append(best)
    return made, [sorted(row) for row in reads]


def _best(pairs: list[Pair], readers: list[set[int]]) -> tuple[int, int] | None:
    """Take the pair that most nodes read from the heap; None: no pair saves a row.

    Counts only become smaller, so one at the top that is still right is the largest.
    """
    while pairs:
        count, first, second = heappop(pairs)
        now = len(readers[first] & readers[second])
        if now == -count:
            return first, second
        if now > _BREAK_EVEN:
            heappush(pairs, (-now, first, second))
    return None


def _pairs(adjacency: sp.csr_array) -> list[Pair]:
    """Return the pairs of neighbours that most nodes share."""
    ones = adjacency.astype(np.int32)
    shared = sp.triu(ones @ ones, 1).tocoo()
    order = np.argsort(shared.data)[::-1][:_PAIRS]
    order = order[shared.data[order] > _BREAK_EVEN]
    columns = (-shared.data[order], shared.row[order], shared.col[order])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _least_seconds(kernels: NativeKernels, *products: Sequence[Sequence[int]]) -> list[float]:
    """Return the least seconds of each product, in turn; a product is the rows that each of its rows adds."""
    multiplied = []
    for product in products:
        indptr = np.concatenate(([0], np.cumsum([len(row) for row in product])))
        indices = np.concatenate(list(map(np.asarray, product))).astype(np.int32)
        out = np.empty((len(product), WIDTH), np.float32)
        multiplied.append((kernels.aggregate(indptr, indices, None)(0, len(product)), np.ones_like(out), out))
    taken: list[list[float]] = [[] for _ in products]
    for _ in range(ROUNDS):
        for seconds, (multiply, rows, out) in zip(taken, multiplied, strict=True):
            begin = time.perf_counter()
            multiply(rows, out, add=False)
            seconds.append(time.perf_counter() - begin)
    return list(map(min, taken))


if __name__ == "__main__":
    sys.exit(main())
