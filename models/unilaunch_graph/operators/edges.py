"""The edges of a part by their target and by their source, each in blocks of rows that a core's cache holds.

A layer may choose other edges than the given ones: `choose_edges`, and `choose_features` for what they carry.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats

#: Rows and entries of one block: what is computed for them, 16 wide, stays in a core's second cache.
_BLOCK = 1 << 14


@dataclass(frozen=True, slots=True)
class EdgeBlock:
    """Some rows of a CSR matrix.

    Attributes:
        rows: Which rows.
        entries: Their entries.
        indptr: Where each row begins, within the block. (rows of the block + 1,) int32
        columns: Column of each entry. int32
        degrees: Entries of each row. (rows of the block,)
        filled: The rows that have an entry, within the block; all rows if None.
    """

    rows: slice
    entries: slice
    indptr: NDArray[np.int32]
    columns: NDArray[np.int32]
    degrees: NDArray[np.int32]
    filled: NDArray[np.int64] | None

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the value (or row of values) of each of the block's rows, once for each of its entries."""
        return np.repeat(values, self.degrees, axis=0)

    def reduce(self, operation: np.ufunc, values: Floats) -> Floats:
        """Return *operation* (np.add, np.maximum) over the entries of each row; 0 for a row without entries."""
        if self.filled is None:
            reduced: Floats = operation.reduceat(values, self.indptr[:-1])
            return reduced
        reduced = np.zeros(len(self.degrees), values.dtype)
        reduced[self.filled] = operation.reduceat(values, self.indptr[:-1][self.filled])
        return reduced


@dataclass(frozen=True, slots=True)
class Transposed:
    """Edges by source.

    Attributes:
        indptr: Where the out-edges of each source begin. (num_sources + 1,)
        indices: Target of each edge. int32
        entries: Place of each edge in the order by target.
    """

    indptr: NDArray[Any]
    indices: NDArray[np.int32]
    entries: NDArray[Any]


class Edges:
    """The edges into the owned nodes of one part.

    Args:
        indptr: Where the in-edges of each owned node begin. (num_owned + 1,)
        indices: Source of each edge, a row of the owned nodes' and, behind them, the halo nodes' rows. int32
        num_sources: Owned and halo nodes.
    """

    def __init__(self, indptr: NDArray[Any], indices: NDArray[np.int32], num_sources: int) -> None:
        self.indptr: NDArray[Any] = indptr
        self.indices: NDArray[np.int32] = indices
        self.num_sources: int = num_sources
        self.num_targets: int = len(indptr) - 1
        self.by_target: list[EdgeBlock] = edge_blocks(indptr, indices)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    @cached_property
    def transposed(self) -> "Transposed":
        """The same edges by source."""
        place = np.arange(self.num_edges, dtype=np.int32 if self.num_edges < 2**31 else np.int64)
        shape = (self.num_targets, self.num_sources)
        matrix = sp.csr_array((place, self.indices, self.indptr), shape=shape).tocsc()
        return Transposed(matrix.indptr, matrix.indices.astype(np.int32, copy=False), matrix.data)

    @cached_property
    def by_source(self) -> list[EdgeBlock]:
        """Blocks of sources, with their out-edges."""
        return edge_blocks(self.transposed.indptr, self.transposed.indices)


@dataclass(frozen=True, slots=True)
class ChosenEdges:
    """The edges that a layer sums over.

    Attributes:
        edges: By target and by source.
        places: Where each edge stands among those given; a self-loop that was added counts from their end on. None if
            they are those given. (edges,)
        made: What layers made of them.
    """

    edges: Edges
    places: NDArray[np.int64] | None
    made: dict[Any, Any] = field(default_factory=dict)


def choose_edges(ends: NDArray[Any], num_owned: int, num_sources: int, *, self_loops: bool) -> ChosenEdges:
    """Return the edges of a part, with its own or with added self-loops.

    Args:
        ends: Source row and target row of each edge. (2, edges)
        num_owned: Owned nodes.
        num_sources: Owned and halo nodes.
        self_loops: Whether to replace the self-loops of the graph by one loop at each owned node, as PyG's
            `add_self_loops=True` does.
    """
    source, target = ends
    if not self_loops:
        if (target[1:] < target[:-1]).any():
            return order_edges(ends, num_owned, num_sources)
        return ChosenEdges(_edges_of(source, target, num_owned, num_sources), None)
    kept, loop = np.flatnonzero(source != target), np.arange(num_owned)
    source, target = (np.concatenate((given[kept], loop)) for given in (source, target))
    chosen = order_edges(np.stack((source, target)), num_owned, num_sources)
    return replace(chosen, places=np.concatenate((kept, loop + ends.shape[1]))[chosen.places])


def order_edges(ends: NDArray[Any], num_owned: int, num_sources: int) -> ChosenEdges:
    """Return edges that are in any order; those into one node keep theirs.

    Args:
        ends: Source row and target row of each edge. (2, edges)
        num_owned: Owned nodes.
        num_sources: Owned and halo nodes.
    """
    order = np.argsort(ends[1], kind="stable")
    source, target = ends[:, order]
    return ChosenEdges(_edges_of(source, target, num_owned, num_sources), order)


def _edges_of(source: NDArray[Any], target: NDArray[Any], num_owned: int, num_sources: int) -> Edges:
    for name, rows, size in (("source", source, num_sources), ("target", target, num_owned)):
        if len(rows) and not 0 <= rows.min() <= rows.max() < size:
            raise IndexError(f"edge_index: {name}s are rows {rows.min()} to {rows.max()}: expected 0 to {size - 1}")
    indptr = np.concatenate(([0], np.cumsum(np.bincount(target, minlength=num_owned))))
    return Edges(indptr, source.astype(np.int32), num_sources)


def edge_blocks(indptr: NDArray[Any], indices: NDArray[np.int32]) -> list[EdgeBlock]:
    """Return a CSR matrix in blocks of about as many rows and entries each; a block has at least one row."""
    size = indptr + np.arange(len(indptr))
    ends = np.unique([*np.searchsorted(size, np.arange(0, size[-1], _BLOCK)), len(indptr) - 1])
    blocks = []
    for begin, end in pairwise(ends.tolist()):
        first, last = int(indptr[begin]), int(indptr[end])
        local = (indptr[begin : end + 1] - first).astype(np.int32)
        degrees = np.diff(local)
        filled = None if degrees.all() else np.flatnonzero(degrees)
        blocks.append(EdgeBlock(slice(begin, end), slice(first, last), local, indices[first:last], degrees, filled))
    return blocks


#: What the features of an added self-loop may be made of, beside numbers.
FILLS = ("mean", "add")


def choose_features(ends: NDArray[Any], places: NDArray[np.int64], num_owned: int, fill: str | None) -> sp.csr_array:
    """Return the matrix from the features of the given edges to those of chosen ones. (chosen edges, edges)

    Args:
        ends: Source row and target row of each given edge. (2, edges)
        places: As in `ChosenEdges`.
        num_owned: Owned nodes.
        fill: "mean" or "add": a self-loop that was added gets that of its node's in-edges that are no loops; None: 0.
    """
    source, target = ends
    kept, num_given = np.flatnonzero(source != target), ends.shape[1]
    columns = kept if fill is None else np.concatenate((kept, kept))
    rows = np.concatenate((kept, num_given + target[kept]))[: len(columns)]
    values = np.ones(len(columns))
    if fill == "mean":
        values[len(kept) :] /= np.bincount(target[kept], minlength=num_owned)[target[kept]]
    return sp.coo_array((values, (rows, columns)), shape=(num_given + num_owned, num_given)).tocsr()[places]


class ChosenFeatures:
    """The features of chosen edges, as a function of those of the given edges; it knows its derivative.

    Args:
        matrix: As `choose_features` returns it.
        loops: The chosen edges that are added self-loops with a constant; None: none has one. (edges,) bool
        constant: Their features: a number, or an array (width,).
    """

    def __init__(self, matrix: sp.csr_array, loops: NDArray[np.bool_] | None = None, constant: Any = 0) -> None:
        self.matrix, self.loops, self.constant = matrix, loops, constant

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the features of the chosen edges. (edges, width) -> (chosen edges, width)"""
        (given,) = inputs
        chosen: Floats = self.matrix.astype(given.dtype) @ given
        if self.loops is not None:
            chosen[self.loops] = np.asarray(self.constant)
        return chosen

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:  # noqa: ARG002
        """Return the gradient of the given edges' features."""
        return [self.matrix.T.astype(gradient.dtype) @ gradient]
