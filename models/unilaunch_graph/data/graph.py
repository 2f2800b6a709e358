"""A whole graph: what a data set is read into and a partition is made from."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError

#: Values of `Graph.split`.
NONE, TRAIN, VAL, TEST = 0, 1, 2, 3

Features: TypeAlias = NDArray[np.float32] | sp.csr_array


@dataclass(frozen=True, slots=True)
class Graph:
    """An undirected graph with node features, labels and a split.

    Attributes:
        indptr: Where each node's neighbours begin in *indices*. (num_nodes + 1,) int64
        indices: Neighbours of each node, ascending; symmetric, no self-loop, no duplicate. (num_edges,) int32
        features: Dense rows or a CSR matrix. (num_nodes, num_features) float32
        labels: Class of each node; -1 where unknown. (num_nodes,) int64
        split: What each node is used for: NONE, TRAIN, VAL or TEST. (num_nodes,) uint8
        num_classes: Number of classes.
        weights: Weight of each edge, the same in both directions; None: each is 1. (num_edges,) float32
        loops: Weight of each node's edge to itself in A_hat; None: each is 1. (num_nodes,) float32
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    features: Features
    labels: NDArray[np.int64]
    split: NDArray[np.uint8]
    num_classes: int
    weights: NDArray[np.float32] | None = None
    loops: NDArray[np.float32] | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def num_features(self) -> int:
        """Number of columns of the features."""
        return int(self.features.shape[1])

    @property
    def degrees(self) -> NDArray[np.int64]:
        """Number of neighbours of each node, without itself. (num_nodes,) int64."""
        return np.diff(self.indptr)

    @property
    def strengths(self) -> NDArray[np.float64]:
        """Sum of the weights of each node's edges, without that to itself. (num_nodes,) float64."""
        if self.weights is None:
            return self.degrees.astype(np.float64)
        ends = np.concatenate(([0.0], np.cumsum(self.weights, dtype=np.float64)))
        return np.diff(ends[self.indptr])

    def adjacency(self) -> sp.csr_array:
        """Return the weights as a matrix, without loops; where there are none, eight-bit ones stand for them."""
        values = np.ones(len(self.indices), np.int8) if self.weights is None else self.weights
        return csr_matrix(values, self.indices, self.indptr, self.num_nodes)


def csr_matrix(
    values: NDArray[Any], indices: NDArray[np.int32], indptr: NDArray[np.integer[Any]], num_columns: int
) -> sp.csr_array:
    """Return a matrix on the same memory: SciPy would copy the indices into the type of a wider indptr."""
    rows = indptr.astype(np.int32 if len(indices) < 1 << 31 else np.int64, copy=False)
    return sp.csr_array((values, indices, rows), shape=(len(indptr) - 1, num_columns))


def undirected(
    sources: NDArray[np.integer[Any]], targets: NDArray[np.integer[Any]], num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the neighbours of each node: every edge in both directions, once, and no self-loop.

    Args:
        sources: One end of each edge. (num_edges,)
        targets: The other end. (num_edges,)
        num_nodes: Number of nodes; below 2**31.

    Returns:
        indptr (num_nodes + 1,) int64 and indices int32, ascending within each node.

    Raises:
        InputError: An end is not in 0 to num_nodes - 1.
    """
    for name, ends in (("source", sources), ("target", targets)):
        if len(ends) and (ends.min() < 0 or ends.max() >= num_nodes):
            at = int(np.flatnonzero((ends < 0) | (ends >= num_nodes))[0])
            raise InputError(f"edge {at}: {name} {ends[at]} is no node; nodes are 0 to {num_nodes - 1}")
    indptr, indices, _ = symmetric(edge_matrix(sources, targets, num_nodes))
    return indptr, indices


def edge_matrix(sources: NDArray[np.integer[Any]], targets: NDArray[np.integer[Any]], num_nodes: int) -> sp.csr_array:
    """Return directed edges as a matrix of bool, each once; the ends must be nodes. (num_nodes, num_nodes)"""
    ends = (sources.astype(np.int32, copy=False), targets.astype(np.int32, copy=False))
    # bool, since duplicates are added: 256 of them would be 0 in eight bits, and the edge would be gone.
    matrix = sp.coo_array((np.ones(len(sources), np.bool_), ends), shape=(num_nodes, num_nodes)).tocsr()
    matrix.sum_duplicates()
    return matrix


def symmetric(matrix: sp.csr_array) -> tuple[NDArray[np.int64], NDArray[np.int32], bool]:
    """Return the neighbours of each node, without itself, and whether each edge was there in both directions already.

    Args:
        matrix: Directed edges, as `edge_matrix` returns them; it may be changed.
    """
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    loops = rows == matrix.indices
    del rows
    if loops.any():
        matrix.data[loops] = False
        matrix.eliminate_zeros()
    back = matrix.T.tocsr()  # its rows come out ascending
    was_symmetric = np.array_equal(matrix.indptr, back.indptr) and np.array_equal(matrix.indices, back.indices)
    whole = matrix if was_symmetric else matrix + back
    return whole.indptr.astype(np.int64), whole.indices.astype(np.int32, copy=False), was_symmetric


def normalise_rows(features: Features) -> Features:
    """Return *features* with each row divided by the sum of its absolute values; an empty row stays empty.

    Sums are taken in float64; the result is float32, dense or CSR as it was given. (num_nodes, num_features)
    """
    if isinstance(features, sp.csr_array):
        scale = _inverse(abs(features) @ np.ones(features.shape[1]))
        data = features.data * np.repeat(scale, np.diff(features.indptr))
        return sp.csr_array((data.astype(np.float32), features.indices, features.indptr), shape=features.shape)
    scale = _inverse(np.abs(features).sum(axis=1, dtype=np.float64))
    # out: a float64 copy of the features would be twice their size.
    return np.multiply(features, scale[:, None], out=np.empty(features.shape, np.float32), casting="same_kind")


def _inverse(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
