"""KaMinPar: a fast partitioner that minimises the cut of large graphs."""

import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch_graph.data.graph import Graph
from unilaunch_graph.partition.metis import sketch
from unilaunch_graph.partition.partitioner import Partitioner
from unilaunch_graph.partition.refine import IMBALANCE


class KaMinPar(Partitioner):
    """KaMinPar (Gottesbueren et al., 2021), for large graphs.

    It gets the same graph as METIS: of a large graph, only some edges of each node. With one thread and a fixed seed it
    gives the same parts in every run.
    """

    package = "kaminpar"

    @override
    def cut(self, graph: Graph, num_parts: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        import kaminpar

        kaminpar.reseed(1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "graph.parhip")
            _write(path, sketch(graph), weights)
            loaded = kaminpar.load_graph(str(path), kaminpar.GraphFileFormat.PARHIP)
        one_thread = kaminpar.KaMinPar(1, kaminpar.default_context())
        return np.asarray(one_thread.compute_partition(loaded, num_parts, IMBALANCE), np.int64)


def _write(path: Path, adjacency: sp.csr_array, weights: NDArray[np.int64]) -> None:
    """Write a graph in ParHIP's binary format: flags, sizes, byte offsets of the rows, neighbours, weights."""
    no_edge_weights = 1
    places = 8 * (3 + len(adjacency.indptr) + adjacency.indptr.astype(np.uint64))
    with path.open("wb") as file:
        for numbers in ([no_edge_weights, adjacency.shape[0], adjacency.nnz], places, adjacency.indices, weights):
            np.asarray(numbers, np.uint64).tofile(file)
