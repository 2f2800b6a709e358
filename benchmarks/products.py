"""The host's kernels in C beside the libraries that the portable ones call, on one thread.

    python benchmarks/products.py [--folder DIR]

The graph of epoch.py, whole, nodes in the order that a part has. Processor time, in turn, least of 9; memory that is
freed is kept, as in a training. Bounds: the sparse product in float32 takes at most 1.15 of FBGEMM's and half of
SciPy's time, a dense product and its two gradients at most 0.77 of torch's (in bfloat16 too, rounding included),
dropout with its mask at most 0.25 of numpy's.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from graphs import make_graph
from mpirun import verdict
from unilaunch_gcn.memory import keep_freed_memory
from unilaunch_graph.arrays import Rows
from unilaunch_graph.data.edges import csr_matrix
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.dropout import mask_words
from unilaunch_graph.kernels.library import load_library
from unilaunch_graph.kernels.native import NativeKernels
from unilaunch_graph.kernels.portable import PortableKernels
from unilaunch_graph.operators import fbgemm
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

Work = dict[str, Callable[[], object]]


def main() -> int:
    """Measure, print, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    torch.set_num_threads(1)
    path = make_graph(parser.parse_args().folder)
    keep_freed_memory()
    library = load_library()
    if library is None:
        print("no C compiler: there is nothing to compare", file=sys.stderr)
        return 1
    kernels = NativeKernels(library, 1)
    graph = open_dataset(str(path), None, None, 0, normalize_features=False).load()
    part = next(split_parts(graph, order_nodes(graph, np.zeros(graph.num_nodes, np.int64), 1)))
    draw = np.random.default_rng(0)
    kept = True
    for width in (128, 40, 16):
        kept &= _sparse(kernels, part, draw.random((part.num_owned, width), np.float32))
    for depth, width in ((300, 128), (128, 128), (128, 40)):
        rows = draw.random((part.num_owned, depth), np.float32)
        weight, gradient = draw.random((depth, width), np.float32), draw.random((part.num_owned, width), np.float32)
        kept &= _dense(kernels, rows, weight, gradient)
    words = mask_words(part.owned, 128, (1, 2), 0.5)
    rows = draw.random((part.num_owned, 128), np.float32)
    portable = PortableKernels(rows.dtype)
    work: Work = {"C": lambda: kernels.drop_out(rows, words), "numpy": lambda: portable.drop_out(rows, words)}
    return 0 if kept & _compare("dropout, 128 wide", work, {"numpy": 0.25}) else 1


def _sparse(kernels: NativeKernels, part: Part, rows: Rows) -> bool:
    ones = np.ones(len(part.owned_indices), np.float32)
    scipy = csr_matrix(ones, part.owned_indices, part.owned_indptr, part.num_owned)
    of_torch = fbgemm.product(part.owned_indptr.astype(np.int32), part.owned_indices, None)
    multiply = kernels.aggregate(part.owned_indptr, part.owned_indices, None)(0, part.num_owned)
    out, words = np.empty_like(rows), kernels.rounded(rows)
    work: Work = {
        "C": lambda: multiply(rows, out, add=False),
        "C, bfloat16": lambda: multiply(words, out, add=False),
        "FBGEMM": lambda: of_torch(rows),
        "SciPy": lambda: scipy @ rows,
    }
    return _compare(f"{len(ones):,} entries, {rows.shape[1]} wide", work, {"FBGEMM": 1.15, "SciPy": 0.5})


def _dense(kernels: NativeKernels, rows: Rows, weight: Rows, gradient: Rows) -> bool:
    x, w, g = map(torch.from_numpy, (rows, weight, gradient))
    name = f"dense, {weight.shape[0]} to {weight.shape[1]} columns"

    def ours(kernels: NativeKernels) -> object:
        return kernels.product(rows, weight), kernels.product(rows.T, gradient), kernels.product(gradient, weight.T)

    def rounded() -> object:
        a, b, c = x.bfloat16(), w.bfloat16(), g.bfloat16()
        return (a @ b).float(), (a.T @ c).float(), (c @ b.T).float()

    by_vectors = NativeKernels(kernels.library, 1, by_tiles=False)
    work: Work = {
        "C": lambda: ours(kernels),
        "vectors": lambda: ours(by_vectors),
        "torch": lambda: (x @ w, x.T @ g, g @ w.T),
    }
    is_kept = _compare(name, work, {"torch": 0.77})
    in_bfloat16 = NativeKernels(kernels.library, 1, is_rounded=True)
    return is_kept & _compare(f"{name}, bfloat16", {"C": lambda: ours(in_bfloat16), "torch": rounded}, {"torch": 0.77})


def _compare(name: str, work: Work, bounds: dict[str, float]) -> bool:
    """Measure, print the times and the bounds of C's over another, and return whether they are kept."""
    taken: dict[str, list[float]] = {kind: [] for kind in work}
    for _ in range(9):
        for kind, do in work.items():
            begin = time.process_time()
            do()
            taken[kind].append(time.process_time() - begin)
    least = {kind: min(times) for kind, times in taken.items()}
    print(f"{name}: " + ", ".join(f"{kind} {seconds * 1e3:.1f} ms" for kind, seconds in least.items()), flush=True)
    kept = [verdict(f"C / {other}", least["C"] / least[other], bound) for other, bound in bounds.items()]
    return all(kept)


if __name__ == "__main__":
    sys.exit(main())
