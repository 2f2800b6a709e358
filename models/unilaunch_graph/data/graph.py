"""A whole graph: data sets are read into it, and partitions are made from it."""

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.data.edges import EDGE_IDS, NamedArrays, csr_matrix, loops_and_duplicates, symmetric
from unilaunch_graph.data.labels import Labels

#: Values of `Graph.split`.
NONE, TRAIN, VAL, TEST = 0, 1, 2, 3

#: Of any type of numbers, as the user gave them.
Features: TypeAlias = NDArray[Any] | sp.csr_array


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph with node features, labels and a split; its edges stand by target.

    Attributes:
        indptr: Where the in-edges of each node begin in *indices*. (num_nodes + 1,) int64
        indices: Sources of the in-edges of each node, ascending. (num_edges,) int32
        features: Dense rows or a CSR matrix, of the user's type of numbers; without columns: there are none.
            (num_nodes, num_features)
        labels: Class of each node, -1 where unknown: (num_nodes,) int64. Or 0 and 1 for each of several labels:
            (num_nodes, num_classes) uint8. Or values to predict, NaN where unknown: (num_nodes,) or
            (num_nodes, num_classes), float32 or float64
        split: What each node is used for: NONE, TRAIN, VAL or TEST. (num_nodes,) uint8
        num_classes: Number of classes, or of columns of the labels: the width of a network's last layer.
        weights: Weight of each edge; None: each is 1. (num_edges,) float32
        loops: Weight of each node's edge to itself in A_hat; None: each is 1. (num_nodes,) float32
        edge_arrays: Further arrays of the edges by name, each with its own type, which may differ between the two
            directions of an edge: "edge_attr" (num_edges, k), "edge_type" (num_edges,), `EDGE_IDS`, and any of the
            user's. (num_edges, ...)
        node_arrays: Further arrays of the nodes by name, each with its own type. (num_nodes, ...)
        is_directed: False: each edge is there in both directions with one weight, without loops and duplicates.
            True: edges are as they were given.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    features: Features
    labels: Labels
    split: NDArray[np.uint8]
    num_classes: int
    weights: NDArray[np.float32] | None = None
    loops: NDArray[np.float32] | None = None
    edge_arrays: NamedArrays = field(default_factory=dict)
    node_arrays: NamedArrays = field(default_factory=dict)
    is_directed: bool = False

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def num_features(self) -> int:
        """Number of columns of the features."""
        return int(self.features.shape[1])

    @property
    def split_sizes(self) -> tuple[int, int, int]:
        """Number of training, validation and test nodes."""
        train, val, test = (int((self.split == use).sum()) for use in (TRAIN, VAL, TEST))
        return train, val, test

    @property
    def least_weight(self) -> float:
        """The smallest of the edges' weights and 0."""
        return 0.0 if self.weights is None else float(self.weights.min(initial=0))

    @property
    def degrees(self) -> NDArray[np.int64]:
        """Number of in-edges of each node. (num_nodes,) int64."""
        return np.diff(self.indptr)

    @property
    def strengths(self) -> NDArray[np.float64]:
        """Sum of the weights of each node's in-edges. (num_nodes,) float64."""
        if self.weights is None:
            return self.degrees.astype(np.float64)
        # Each node's own sum: the difference of two sums over the whole graph would lose the digits of small weights.
        sums, reached = np.zeros(self.num_nodes), np.flatnonzero(self.degrees)
        sums[reached] = np.add.reduceat(self.weights, self.indptr[reached], dtype=np.float64)
        return sums

    def adjacency(self) -> sp.csr_array:
        """Return the weights as a matrix, row = target; where there are none, eight-bit ones stand for them."""
        values = np.ones(len(self.indices), np.int8) if self.weights is None else self.weights
        return csr_matrix(values, self.indices, self.indptr, self.num_nodes)

    def reversed(self) -> "Graph":
        """Return the edges by source, without weights and other arrays: row = source, column = target."""
        if not self.is_directed:
            return replace(self, weights=None, edge_arrays={})
        back = csr_matrix(np.ones(len(self.indices), np.int8), self.indices, self.indptr, self.num_nodes).T.tocsr()
        return replace(self, indptr=back.indptr.astype(np.int64), indices=back.indices.astype(np.int32, copy=False),
                       weights=None, edge_arrays={})  # fmt: skip

    def structure(self) -> "Graph":
        """Return the neighbourhood structure for METIS: symmetric, without weights and other arrays of the edges."""
        return replace(self, weights=None, edge_arrays={}).symmetrised()[0]

    def symmetrised(self) -> tuple["Graph", list[str]]:
        """Return the symmetric form of the graph, which A_hat needs, and a list of the changes in words.

        Every edge is there in both directions, once. Weights of duplicates are added; then an edge of two directions
        gets the mean of its weights in both, and an edge of one direction keeps its own. The weight of a node's loops
        becomes its entry in `loops`, 1 where it has none (as in PyG's GCNConv). The edges' further
        arrays are left out.

        Raises:
            ValueError: A weight is negative: D^-1/2 would not be defined.
        """
        _refuse_negative(self)
        unused = ", ".join(name for name in self.edge_arrays if name != EDGE_IDS)
        changes = [f"{unused} of the edges: not used, left out"] if unused else []
        if not self.is_directed:
            return replace(self, edge_arrays={}), changes
        is_weighted = self.weights is not None
        matrix = self.adjacency().astype(np.float64 if is_weighted else np.bool_)
        matrix.sum_duplicates()
        if matrix.nnz < len(self.indices):
            what = "their weights are added" if is_weighted else "each is used once"
            changes.append(f"{len(self.indices) - matrix.nnz:,} duplicate edges were given: {what}")
        is_loop, loops = loops_and_duplicates(matrix.indptr, matrix.indices)[0], self.loops
        if num_loops := int(np.count_nonzero(is_loop)):
            what = (
                "their weights are those of A_hat's loops; sage has no loops"
                if is_weighted
                else "left out, A_hat brings its own"
            )
            changes.append(f"{num_loops:,} self-loops were given: {what}")
            if is_weighted:
                loops = np.ones(self.num_nodes, np.float32)
                loops[matrix.indices[is_loop]] = matrix.data[is_loop]
        del is_loop
        whole, was_symmetric = symmetric(matrix)
        if not was_symmetric:
            what = ", with the mean of both directions' weights" if is_weighted else ""
            changes.append(f"directed edges were given: symmetrised{what}")
        return replace(
            self,
            indptr=whole.indptr.astype(np.int64),
            indices=whole.indices.astype(np.int32, copy=False),
            weights=whole.data.astype(np.float32) if is_weighted else None,
            loops=loops,
            edge_arrays={},
            is_directed=False,
        ), changes


def _refuse_negative(graph: Graph) -> None:
    if graph.weights is None or not len(graph.weights) or graph.weights.min() >= 0:
        return
    at = int(np.flatnonzero(graph.weights < 0)[0])
    target = int(np.searchsorted(graph.indptr, at, side="right")) - 1
    raise ValueError(
        f"the edge from node {graph.indices[at]} to node {target} has the weight {graph.weights[at]:g}: "
        "D^-1/2 (A + I) D^-1/2 needs weights of 0 or more"
    )


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
