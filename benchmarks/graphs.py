"""The generated graphs of the speed benchmarks: communities, heavy-tailed degrees, dense features.

python benchmarks/graphs.py FOLDER [--nodes 100000 | --large]
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


def make_graph(folder: Path, nodes: int = 100_000, features: int = 300, classes: int = 40) -> Path:
    """Write the graph as a user's own .npz, once, and return its path; about 45 directed edges a node."""
    path = folder / (f"communities-{nodes}.npz" if features == 300 else f"communities-{nodes}-{features}.npz")
    if not path.exists():
        draw = np.random.default_rng(0)
        community = draw.integers(0, 200, nodes)
        adjacency = _edges(draw, community)
        labels = community % classes
        centers = draw.standard_normal((classes, features), dtype=np.float32)
        x = centers[labels] * 0.5 + draw.standard_normal((nodes, features), dtype=np.float32)
        use = draw.random(nodes)
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(
            path, indptr=adjacency.indptr, indices=adjacency.indices, x=x, y=labels,
            train_mask=use < 0.6, val_mask=(use >= 0.6) & (use < 0.8), test_mask=use >= 0.8,
        )  # fmt: skip
    return path


def make_large(folder: Path, nodes: int = 233_000, degree: int = 570, features: int = 602, classes: int = 41) -> Path:
    """Write a graph in Reddit's shape as a folder of .npy files, once; about 100 million directed edges."""
    path = folder / f"large-{nodes}-{degree}"
    if not (path / "y.npy").exists():
        draw = np.random.default_rng(1)
        path.mkdir(parents=True, exist_ok=True)
        community = draw.integers(0, 200, nodes)
        adjacency = _edges(draw, community, degree)
        np.save(path / "indptr.npy", adjacency.indptr.astype(np.int64))
        np.save(path / "indices.npy", adjacency.indices.astype(np.int32))
        del adjacency
        labels = community % classes
        x: Any = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
            path / "x.npy", "w+", np.float32, (nodes, features)
        )
        centers = draw.standard_normal((classes, features), dtype=np.float32) * 0.5
        for begin in range(0, nodes, 8192):
            own = labels[begin : begin + 8192]
            x[begin : begin + 8192] = centers[own] + draw.standard_normal((len(own), features), dtype=np.float32)
        x.flush()
        use = draw.random(nodes)
        for name, mask in (("train", use < 0.66), ("val", (use >= 0.66) & (use < 0.76)), ("test", use >= 0.76)):
            np.save(path / f"{name}_mask.npy", mask)
        np.save(path / "y.npy", labels)
    return path


def _edges(draw: np.random.Generator, community: NDArray[np.int64], degree: int = 50) -> sp.csr_array:
    """Draw edges: 80 % within a community, ends in proportion to heavy-tailed weights."""
    nodes = len(community)
    order = np.argsort(community, kind="stable")
    ends = np.cumsum(draw.pareto(2.5, nodes) + 0.5)
    first = np.concatenate(([0.0], ends))[np.searchsorted(community[order], np.arange(201))]
    count = nodes * degree // 2
    sources = np.searchsorted(ends, draw.random(count) * ends[-1])
    of_source = community[order][sources]
    low, high = first[of_source], first[of_source + 1]
    anywhere = draw.random(count) >= 0.8
    low, high = np.where(anywhere, 0.0, low), np.where(anywhere, ends[-1], high)
    targets = np.minimum(np.searchsorted(ends, low + draw.random(count) * (high - low)), nodes - 1)
    loop = sources == targets
    a, b = (order[ends[~loop]].astype(np.int32) for ends in (sources, targets))
    half = sp.coo_array((np.ones(len(a), bool), (a, b)), shape=(nodes, nodes)).tocsr()
    return sp.csr_array(half + half.T)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--large", action="store_true", help="the one in Reddit's shape")
    chosen = parser.parse_args()
    print(make_large(chosen.folder) if chosen.large else make_graph(chosen.folder, chosen.nodes))
