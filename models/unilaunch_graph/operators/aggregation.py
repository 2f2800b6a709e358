"""A_hat @ H over all parts, and X @ W over the owned nodes, as linear operators on host arrays.

A framework wraps an operator by its own autograd in a few lines; the mathematics stands here once, for all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.arrays import FloatType, Rows
from unilaunch_graph.exchange.approximate import SampledHalo
from unilaunch_graph.exchange.halo import Halo
from unilaunch_graph.operators.normalization import Scales, node_scales
from unilaunch_graph.operators.row_blocks import Block, RowBlocks, each, make_pool
from unilaunch_graph.partition.part import Part


class LinearOperator(Protocol):
    """Rows in, rows out; `rmatmat` is the exact transpose of `matmat` (SciPy's names)."""

    def matmat(self, rows: Rows) -> Rows:
        """Return operator @ rows."""

    def rmatmat(self, rows: Rows) -> Rows:
        """Return operator.T @ rows."""


class Aggregator(LinearOperator, Protocol):
    """The operator that ranks apply together."""

    def start_epoch(self, epoch: int | None) -> None:
        """Note that an epoch begins, or an evaluation (None)."""


class Aggregation:
    """A_hat of the whole graph: each rank passes its owned rows and gets its owned rows of the product.

    W is symmetric, so the transpose is the same product with the factors of both sides exchanged: the gradient of the
    owned rows needs the same halo and the same number of bytes, and no partial sums whose order could matter.

    Args:
        part: This rank's part.
        halo: The way to its halo rows.
        threads: Threads that share the product's rows.
        conv: The normalisation: "gcn" or "sage".
        dtype: Type of the rows.
    """

    def __init__(self, part: Part, halo: Halo, threads: int, conv: str, dtype: FloatType) -> None:
        self.halo = halo
        self.scales = DiagonalScaling.of(node_scales(conv, part.strengths, part.loops), dtype)
        self.owned = RowBlocks(part.owned_indptr, part.owned_indices, part.owned_weights, part.num_owned, dtype)
        self.remote = RowBlocks(part.halo_indptr, part.halo_indices, part.halo_weights, part.num_halo, dtype)
        self.pool = make_pool(threads)

    def start_epoch(self, epoch: int | None) -> None:
        """Note that an epoch begins, or an evaluation (None)."""
        self.halo.start_epoch(epoch)

    def matmat(self, rows: Rows) -> Rows:
        """Return the owned rows of A_hat @ H; all ranks must call it. (num_owned, width)"""
        return self._multiply(rows, self.scales)

    def rmatmat(self, rows: Rows) -> Rows:
        """Return the owned rows of A_hat.T @ G; all ranks must call it. (num_owned, width)"""
        if isinstance(self.halo, SampledHalo):
            return self._give_back(self.halo, rows, self.scales.transposed)
        return self._multiply(rows, self.scales.transposed)

    def _multiply(self, rows: Rows, scales: "DiagonalScaling") -> Rows:
        scaled = np.ascontiguousarray(rows if scales.right is None else rows * scales.right)
        arriving = self.halo.begin(scaled)
        product = self._multiply_owned(scaled, scales, arriving.progress)
        halo_rows = arriving.wait()

        def multiply_halo(block: Block) -> None:
            span = block.span
            remote = block.multiply(halo_rows)
            if scales.left is not None:
                remote *= scales.left[span]
            product[span] += remote

        each(self.pool, self.remote.filled, multiply_halo, lambda: None)
        return product

    def _give_back(self, halo: SampledHalo, rows: Rows, scales: "DiagonalScaling") -> Rows:
        """Return the exact transpose of a sampled product: sums for the sampled halo rows go back to their owners."""
        scaled = np.ascontiguousarray(rows if scales.right is None else rows * scales.right)
        arriving = halo.give_back(scaled)
        product = self._multiply_owned(scaled, scales, arriving.progress)
        for owned, sums in arriving.wait():
            product[owned] += sums if scales.left is None else sums * scales.left[owned]
        return product

    def _multiply_owned(self, scaled: Rows, scales: "DiagonalScaling", between: Callable[[], None]) -> Rows:
        product = np.empty_like(scaled)

        def multiply(block: Block) -> None:
            span = block.span
            own = block.multiply(scaled)
            if scales.loops is not None:
                own += scaled[span] if scales.loops is ONES else scaled[span] * scales.loops[span]
            if scales.left is None:
                product[span] = own
            else:
                np.multiply(own, scales.left[span], out=product[span])

        each(self.pool, self.owned.blocks, multiply, between)
        return product


#: Stands for loops that are all 1, as in a graph that brings none of its own.
ONES: Rows = np.ones((1, 1), np.float32)


@dataclass(frozen=True, slots=True)
class DiagonalScaling:
    """The diagonal matrices of `Scales`, as columns that rows are multiplied by; None stands for ones, or for no loops.

    Attributes:
        left: (n, 1)
        right: (n, 1)
        loops: (n, 1), or `ONES`
    """

    left: Rows | None
    right: Rows | None
    loops: Rows | None

    @classmethod
    def of(cls, scales: Scales, dtype: FloatType) -> "DiagonalScaling":
        """Return *scales* in the type of the rows."""
        left, right = (_column(side, dtype) if (side != 1).any() else None for side in (scales.left, scales.right))
        loops = ONES if (scales.loops == 1).all() else _column(scales.loops, dtype)
        return cls(left, right, loops if scales.loops.any() else None)

    @property
    def transposed(self) -> "DiagonalScaling":
        """The scaling of the transposed matrix."""
        return DiagonalScaling(self.right, self.left, self.loops)


def _column(values: NDArray[np.float64], dtype: FloatType) -> Rows:
    return values.astype(dtype)[:, None]


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
