"""Edges as arrays: by target, as they were given, or each in both directions."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError

#: Number of entries from which on 32 bits are too few to number them.
WIDE = 1 << 31
#: Edges that are sorted at a time, in the processor's cache.
_PIECE = 1 << 18
#: The array of the edges that names each by its position in the user's list.
EDGE_IDS = "edge_ids"
#: Arrays with a row for each edge (or node), by name.
NamedArrays = Mapping[str, NDArray[Any]]


class Edges(NamedTuple):
    """The edges of a graph in CSR form: row = target, column = source.

    Attributes:
        indptr: Where the in-edges of each node begin. (num_nodes + 1,) int64
        indices: Their sources, ascending within each node. (num_edges,) int32
        weights: None: each is 1. (num_edges,) float32
        edge_arrays: Further arrays of the edges, each with its own type, and `EDGE_IDS`. (num_edges, ...)
        is_directed: False: each edge is there in both directions with one weight, without loops and duplicates.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32] | None
    edge_arrays: NamedArrays
    is_directed: bool


def edges_as_given(
    sources: NDArray[np.integer[Any]],
    targets: NDArray[np.integer[Any]],
    num_nodes: int,
    weights: NDArray[np.float32] | None = None,
    edge_arrays: NamedArrays | None = None,
) -> Edges:
    """Return edges by target; loops, duplicates and directions stay, and duplicates keep their order.

    Takes 10 bytes of memory for each edge, of which 8 stay, and 16 for each node; the ends may be mapped files.

    Args:
        sources: Source of each edge, 0 to num_nodes - 1. (num_edges,)
        targets: Target of each edge. (num_edges,)
        num_nodes: Number of nodes; below 2**31.
        weights: Weight of each edge. (num_edges,)
        edge_arrays: Further arrays of the edges by name. (num_edges, ...)
    """
    return _edges(*_sorted(sources, targets, num_nodes), weights, edge_arrays)


def _edges(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], ids: NDArray[Any], weights: NDArray[np.float32] | None,
    edge_arrays: NamedArrays | None,
) -> Edges:  # fmt: skip
    """Return sorted edges with what the user gave for them; *ids* are their positions in the user's list."""
    weights = None if weights is None else weights[ids]
    arrays = {name: array[ids] for name, array in (edge_arrays or {}).items()} | {EDGE_IDS: ids}
    return Edges(indptr, indices, weights, arrays, not is_symmetric(indptr, indices, weights))


def edges_of_rows(
    indptr: NDArray[np.integer[Any]],
    indices: NDArray[np.integer[Any]],
    weights: NDArray[np.float32] | None = None,
    edge_arrays: NamedArrays | None = None,
) -> Edges:
    """Return edges by target from a CSR matrix whose rows are sources and whose columns are targets.

    Takes 12 bytes of memory for each edge, of which 8 stay; SciPy's transposition does not change the order of what one
    target has. From `WIDE` edges on it would take 32, and `edges_as_given` sorts them.
    """
    num_nodes = len(indptr) - 1
    if len(indices) >= WIDE:
        sources = np.repeat(np.arange(num_nodes, dtype=np.int32), np.diff(indptr))
        return edges_as_given(sources, indices, num_nodes, weights, edge_arrays)
    ids = np.arange(len(indices), dtype=np.int32)
    turned = csr_matrix(ids, indices.astype(np.int32, copy=False), indptr, num_nodes).T.tocsr()
    del ids
    return _edges(turned.indptr.astype(np.int64), turned.indices, turned.data, weights, edge_arrays)


def _sorted(
    sources: NDArray[np.integer[Any]], targets: NDArray[np.integer[Any]], num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]:
    """Return the edges by target: indptr, their sources, ascending, and the position of each in the user's list.

    The edges go to ranges of targets first, each small enough to be sorted in the cache, piece by piece of the list.
    """
    num_edges, shift = len(sources), _bits_of_range(num_nodes, len(sources))
    sizes = np.zeros((num_nodes >> shift) + 1, np.int64)
    for piece in _pieces(num_edges):
        sizes += np.bincount(targets[piece].astype(np.int32) >> shift, minlength=len(sizes))
    borders = np.concatenate(([0], np.cumsum(sizes)))
    free = borders[:-1].copy()  # the next place in each range
    indices = np.empty(num_edges, np.int32)
    ids = np.empty(num_edges, np.int32 if num_edges < WIDE else np.int64)
    low = np.empty(num_edges, np.uint16)  # of each target, its number within the range
    for piece in _pieces(num_edges):
        ends = targets[piece].astype(np.int32, copy=False)
        ranges = (ends >> shift).astype(np.uint16)
        order = np.argsort(ranges, kind="stable")  # of 16 bits: a radix sort
        ranges = ranges[order]
        counts = np.bincount(ranges, minlength=len(sizes))
        places = np.arange(len(order)) + (free - np.cumsum(counts) + counts)[ranges]
        free += counts
        indices[places], ids[places] = sources[piece][order], order + piece.start
        low[places] = (ends & ((1 << shift) - 1)).astype(np.uint16)[order]
    indptr = np.zeros(num_nodes + 1, np.int64)
    for number, (begin, end) in enumerate(pairwise(borders.tolist())):
        order = _order(low[begin:end], indices[begin:end], num_nodes)
        indices[begin:end], ids[begin:end] = indices[begin:end][order], ids[begin:end][order]
        degrees = indptr[1 + (number << shift) : 1 + (number + 1 << shift)]
        degrees[:] = np.bincount(low[begin:end], minlength=len(degrees))
    np.cumsum(indptr, out=indptr)
    return indptr, indices, ids


def _bits_of_range(num_nodes: int, num_edges: int) -> int:
    """Return the bits of a target's number within its range: at most 16, and as many ranges as 16 bits can number."""
    bits = 16
    while bits > 0 and num_edges > _PIECE * ((num_nodes >> bits) + 1) and num_nodes >> (bits - 1) < 1 << 16:
        bits -= 1
    return bits


def _pieces(count: int) -> Iterator[slice]:
    return (slice(begin, min(begin + _PIECE, count)) for begin in range(0, count, _PIECE))


def _order(targets: NDArray[np.uint16], sources: NDArray[np.int32], num_nodes: int) -> NDArray[np.int64]:
    """Return the order by target, then by source, then by position: stable radix sorts of 16 bits each."""
    order: NDArray[np.int64] = np.argsort((sources & 0xFFFF).astype(np.uint16), kind="stable")
    if num_nodes > 1 << 16:
        order = order[np.argsort((sources >> 16).astype(np.uint16)[order], kind="stable")]
    return order[np.argsort(targets[order], kind="stable")]


def is_symmetric(indptr: NDArray[np.int64], indices: NDArray[np.int32], weights: NDArray[np.float32] | None) -> bool:
    """Return whether each edge is there in both directions with one weight, once, and none is a loop.

    Args:
        indptr: CSR of the edges. (num_nodes + 1,)
        indices: Ascending within each row. (num_edges,)
        weights: None: each is 1. (num_edges,)
    """
    out = np.zeros(len(indptr) - 1, np.int64)
    counted = max(_PIECE, len(out))  # at a time: numpy takes 8 bytes for each, and for each node
    for begin in range(0, len(indices), counted):
        out += np.bincount(indices[begin : begin + counted], minlength=len(out))
    out -= np.diff(indptr)
    if out.any():  # a large directed graph is not transposed for it
        return False
    if any(found.any() for found in loops_and_duplicates(indptr, indices)):
        return False
    matrix = csr_matrix(
        np.ones(len(indices), np.int8) if weights is None else weights, indices, indptr, len(indptr) - 1
    )
    return _equal(matrix, matrix.T.tocsr())


def loops_and_duplicates(
    indptr: NDArray[np.int64], indices: NDArray[np.int32]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which edges are loops, and which repeat the edge before them. (num_edges,) twice"""
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
    duplicates = np.zeros(len(indices), bool)
    np.logical_and(indices[1:] == indices[:-1], rows[1:] == rows[:-1], out=duplicates[1:])
    return rows == indices, duplicates


def csr_matrix(
    values: NDArray[Any], indices: NDArray[np.int32], indptr: NDArray[np.integer[Any]], num_columns: int
) -> sp.csr_array:
    """Return a matrix on the same memory: SciPy would copy the indices into the type of a wider indptr."""
    rows = indptr.astype(np.int32 if len(indices) < WIDE else np.int64, copy=False)
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
    matrix, _ = symmetric(edge_matrix(sources, targets, num_nodes))
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32, copy=False)


def edge_matrix(sources: NDArray[np.integer[Any]], targets: NDArray[np.integer[Any]], num_nodes: int) -> sp.csr_array:
    """Return directed edges as a matrix of bool, each once; the ends must be nodes. (num_nodes, num_nodes)"""
    ends = (sources.astype(np.int32, copy=False), targets.astype(np.int32, copy=False))
    # bool, since duplicates are added: 256 of them would be 0 in eight bits, and the edge would be gone.
    matrix = sp.coo_array((np.ones(len(sources), np.bool_), ends), shape=(num_nodes, num_nodes)).tocsr()
    matrix.sum_duplicates()
    return matrix


def symmetric(matrix: sp.csr_array) -> tuple[sp.csr_array, bool]:
    """Return each edge in both directions, without loops, and whether each one was there in both already.

    Args:
        matrix: Directed edges, each once, in order: of bool, or of weights of 0 or more in float64. An edge of two
            directions gets the mean of its weights, an edge of one direction keeps its own. It is changed: a weight of
            0 becomes the smallest number, which is 0 in float32.
    """
    if matrix.dtype != np.bool_:  # SciPy drops entries of 0 from sums, and here they are those of loops
        np.maximum(matrix.data, np.finfo(np.float64).tiny, out=matrix.data)
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    matrix.data[rows == matrix.indices] = 0
    del rows
    matrix.eliminate_zeros()
    back = matrix.T.tocsr()  # its rows come out ascending
    if _equal(matrix, back):
        return matrix, True
    whole = matrix + back
    if whole.dtype != np.bool_:
        counts = sum(csr_matrix(np.ones(side.nnz, np.int8), side.indices, side.indptr, side.shape[1])
                     for side in (matrix, back))  # fmt: skip
        whole.data /= counts.data
    return whole, False


def _equal(one: sp.csr_array, other: sp.csr_array) -> bool:
    """Return whether two matrices have the same entries in the same order."""
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("indptr", "indices", "data"))
