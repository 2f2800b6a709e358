"""A_hat @ H over all parts, and X @ W over the owned nodes, as linear operators on host arrays.

A framework wraps an operator by its own autograd in a few lines; the mathematics stands here once, for all of them.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_gcn.arrays import FloatType, Rows
from unilaunch_gcn.halo import HaloExchange
from unilaunch_gcn.normalization import edge_values, row_scale
from unilaunch_gcn.partition import Part

#: Rows that are multiplied at a time: the product is written while it is in the cache, and the exchange moves on.
_PIECE = 2048


class LinearOperator(Protocol):
    """Rows in, rows out; `rmatmat` is the exact transpose of `matmat` (SciPy's names)."""

    def matmat(self, rows: Rows) -> Rows:
        """Return operator @ rows."""

    def rmatmat(self, rows: Rows) -> Rows:
        """Return operator.T @ rows."""


class Aggregation:
    """A_hat of the whole graph: each rank passes its owned rows and gets its owned rows of the product.

    A_hat is symmetric, so it is its own transpose: the gradient of the owned rows is A_hat @ (the gradient of the
    product), with the same halo and the same number of bytes, and no partial sums whose order could matter.

    Args:
        part: This rank's part.
        halo: Its exchange.
        threads: Threads that share the product's rows.
        dtype: Type of the rows.
    """

    def __init__(self, part: Part, halo: HaloExchange, threads: int, dtype: FloatType) -> None:
        self.halo = halo
        self.num_owned = part.num_owned
        scale, halo_scale = row_scale(part.degrees), row_scale(part.halo_degrees)
        self.diagonal = (scale * scale).astype(dtype)[:, None]
        self.owned = _pieces(part.owned_indptr, part.owned_indices, scale, scale, dtype)
        self.remote = _pieces(part.halo_indptr, part.halo_indices, scale, halo_scale, dtype)
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def matmat(self, rows: Rows) -> Rows:
        """Return the owned rows of A_hat @ H; all ranks must call it. (num_owned, width)"""
        rows = np.ascontiguousarray(rows)
        arriving = self.halo.begin(rows)
        product = np.empty((self.num_owned, rows.shape[1]), rows.dtype)

        def multiply_owned(piece: "_Piece") -> None:
            np.multiply(rows[piece.span], self.diagonal[piece.span], out=product[piece.span])
            product[piece.span] += piece.block @ rows

        def multiply_halo(piece: "_Piece") -> None:
            product[piece.span] += piece.block @ halo_rows

        self._each(self.owned, multiply_owned, arriving.progress)
        halo_rows = arriving.wait()
        self._each(self.remote, multiply_halo, lambda: None)
        return product

    rmatmat = matmat

    def _each(self, pieces: "list[_Piece]", multiply: "_Multiply", between: "_Between") -> None:
        for _ in self.pool.map(multiply, pieces) if self.pool else map(multiply, pieces):
            between()


class _Multiply(Protocol):
    def __call__(self, piece: "_Piece") -> None: ...


class _Between(Protocol):
    def __call__(self) -> None: ...


class _Piece:
    """Some rows of a CSR matrix, as a matrix of their own on the same arrays."""

    def __init__(self, span: slice, block: sp.csr_array) -> None:
        self.span = span
        self.block = block


def _pieces(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], row: NDArray[np.float64], column: NDArray[np.float64],
    dtype: FloatType,
) -> list[_Piece]:  # fmt: skip
    """Return a CSR block of A_hat in pieces of rows; pieces without an entry are left out."""
    values = edge_values(indptr, indices, row, column, dtype)
    pieces = []
    for begin in range(0, len(row), _PIECE):
        end = min(begin + _PIECE, len(row))
        first, last = int(indptr[begin]), int(indptr[end])
        local = (indptr[begin : end + 1] - first).astype(np.int32)
        block = sp.csr_array((values[first:last], indices[first:last], local), shape=(end - begin, len(column)))
        pieces.append(_Piece(slice(begin, end), block))
    return pieces


class SparseFeatures:
    """X @ W for a sparse X."""

    def __init__(self, features: sp.csr_array) -> None:
        self.features = features

    def matmat(self, rows: Rows) -> Rows:
        """Return X @ W. (num_owned, width)"""
        product: Rows = self.features @ rows
        return product

    def rmatmat(self, rows: Rows) -> Rows:
        """Return X.T @ G; SciPy multiplies by the transposed view, in the order of X's rows. (num_features, width)"""
        product: Rows = self.features.T @ np.ascontiguousarray(rows)
        return product


class DenseFeatures:
    """X @ W for a dense X."""

    def __init__(self, features: Rows) -> None:
        self.features = features

    def matmat(self, rows: Rows) -> Rows:
        """Return X @ W. (num_owned, width)"""
        return self.features @ rows

    def rmatmat(self, rows: Rows) -> Rows:
        """Return X.T @ G. (num_features, width)"""
        return self.features.T @ rows
