"""Edges as arrays: by target, as they were given, or each in both directions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError

#: Number of entries from which on 32 bits are too few to number them.
WIDE = 1 << 31
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

    Args:
        sources: Source of each edge, 0 to num_nodes - 1. (num_edges,)
        targets: Target of each edge. (num_edges,)
        num_nodes: Number of nodes; below 2**31.
        weights: Weight of each edge. (num_edges,)
        edge_arrays: Further arrays of the edges by name. (num_edges, ...)
    """
    ends = (sources.astype(np.int32, copy=False), targets.astype(np.int32, copy=False))
    matrix = sp.coo_array((_positions(len(sources)), ends), shape=(num_nodes, num_nodes))
    matrix.has_canonical_format = True  # tocsr() would add up duplicates
    by_source = matrix.tocsr()
    del matrix
    by_target = by_source.T.tocsr()  # a counting sort: sources come out ascending, duplicates in their order
    del by_source  # half of the memory, while the edges are compared with their reverse
    return _by_target(by_target, weights, edge_arrays or {})


def edges_of_rows(
    indptr: NDArray[np.integer[Any]],
    indices: NDArray[np.int32],
    weights: NDArray[np.float32] | None = None,
    edge_arrays: NamedArrays | None = None,
) -> Edges:
    """Return edges by target from a CSR matrix whose rows are sources and whose columns are targets."""
    by_source = csr_matrix(_positions(len(indices)), indices, indptr, len(indptr) - 1)
    reverse = None
    if by_source.has_sorted_indices:
        values = np.ones(len(indices), np.int8) if weights is None else weights
        reverse = csr_matrix(values, indices, indptr, len(indptr) - 1)
    return _by_target(by_source.T.tocsr(), weights, edge_arrays or {}, reverse)


def _positions(count: int) -> NDArray[Any]:
    """Return the position of each edge in the user's list. (count,) int32 or int64"""
    return np.arange(count, dtype=np.int32 if count < WIDE else np.int64)


def _by_target(
    matrix: sp.csr_array,
    weights: NDArray[np.float32] | None,
    edge_arrays: NamedArrays,
    reverse: sp.csr_array | None = None,
) -> Edges:
    """Return edges from a matrix by target that holds `_positions`; *reverse* is as in `is_symmetric`."""
    ids = matrix.data
    weights = None if weights is None else weights[ids]
    arrays = {name: array[ids] for name, array in edge_arrays.items()} | {EDGE_IDS: ids}
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32, copy=False)
    return Edges(indptr, indices, weights, arrays, not is_symmetric(indptr, indices, weights, reverse))


def is_symmetric(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    weights: NDArray[np.float32] | None,
    reverse: sp.csr_array | None = None,
) -> bool:
    """Return whether each edge is there in both directions with one weight, once, and none is a loop.

    Args:
        indptr: CSR of the edges. (num_nodes + 1,)
        indices: Ascending within each row. (num_edges,)
        weights: None: each is 1. (num_edges,)
        reverse: The transposed matrix of the weights, with ascending columns, if it is there already.
    """
    if any(found.any() for found in loops_and_duplicates(indptr, indices)):
        return False
    matrix = csr_matrix(
        np.ones(len(indices), np.int8) if weights is None else weights, indices, indptr, len(indptr) - 1
    )
    return _equal(matrix, matrix.T.tocsr() if reverse is None else reverse)


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
