"""The features X of the owned nodes as linear operators: X @ W; and A_hat X, which is made once."""

from collections.abc import Callable
from functools import cached_property
from mmap import MADV_DONTNEED, mmap
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_gcn.masks import Masks
from unilaunch_graph.arrays import DeviceArrays, Floats, Rows
from unilaunch_graph.dropout import MaskWords
from unilaunch_graph.kernels.choice import Products
from unilaunch_graph.kernels.epilogue import NOTHING, Epilogue, end

#: Columns of sparse features that are aggregated at a time, as a dense block; and of dense ones.
_COLUMNS, _DENSE_COLUMNS = 256, 32
#: Rows of mapped features that are held while columns are taken.
_ROWS = 8192


class SparseFeatures:
    """X @ W for a sparse X on the host."""

    def __init__(self, features: sp.csr_array) -> None:
        self.features = features

    def matmat(self, rows: Rows, epilogue: Epilogue = NOTHING) -> Rows:
        """Return X @ W, then what the epilogue makes of it. (num_owned, width)"""
        product: Rows = self.features @ rows
        end(product, epilogue)
        return product

    def rmatmat(self, rows: Rows) -> Rows:
        """Return X.T @ G; SciPy multiplies by the transposed view, in the order of X's rows. (num_features, width)"""
        product: Rows = self.features.T @ np.ascontiguousarray(rows)
        return product


class HostFeatures:
    """X @ W for a dense X on the host.

    Args:
        features: X.
        products: What multiplies.
        words: X is dropped out by this mask; None: no dropout.
    """

    def __init__(self, features: Rows, products: Products, words: MaskWords | None = None) -> None:
        self.features, self.products, self.words = features, products, words

    @cached_property
    def operand(self) -> Any:
        """X as the products take it."""
        if self.words:
            return self.products.dropped(self.features, self.words)
        return self.products.operand(self.features)

    def matmat(self, rows: Rows, epilogue: Epilogue = NOTHING) -> Rows:
        """Return X @ W, then what the epilogue makes of it. (num_owned, width)"""
        return self.products.product(self.operand, self.products.operand(rows), epilogue)

    def rmatmat(self, rows: Rows) -> Rows:
        """Return X.T @ G. (num_features, width)"""
        return self.products.product(self.operand.T, self.products.operand(rows))

    def gradients(self, weight: Rows, gradient: Rows, epilogue: Epilogue) -> tuple[Rows, Rows]:
        """Return G @ W.T, then what the epilogue makes of it, and X.T @ G: the gradients of X and of W."""
        upstream = self.products.operand(gradient)
        of_rows = self.products.product(upstream, self.products.operand(weight).T, epilogue)
        return of_rows, self.products.product(self.operand.T, upstream)


class DenseFeatures:
    """X @ W for a dense X on a device."""

    def __init__(self, features: Any) -> None:
        self.features = features

    def matmat(self, rows: Any) -> Any:
        """Return X @ W. (num_owned, width)"""
        return self.features @ rows

    def rmatmat(self, rows: Any) -> Any:
        """Return X.T @ G. (num_features, width)"""
        return self.features.T @ rows


class DeviceSparseFeatures:
    """X @ W for a sparse X on a device.

    Args:
        features: X.
        tensors: The framework on the device.
        masks: The dropout masks.
    """

    def __init__(self, features: sp.csr_array, tensors: DeviceArrays, masks: Masks) -> None:
        self.tensors = tensors
        places = features.copy()
        places.data = np.arange(features.nnz)
        order: NDArray[np.int64] = places.T.tocsr().data
        transposed = features.T.tocsr()
        self.matrix = tensors.sparse(features.indptr, features.indices, features.data, features.shape)
        self.transposed = tensors.sparse(transposed.indptr, transposed.indices, transposed.data, transposed.shape)
        self.order = tensors.tensor(order.astype(np.int64))
        rows = np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))
        self.mask = masks.of_entries(rows, features.indices, features.shape[1])
        self.values: tuple[Any, Any] = (None, None)

    def dropped(self, epoch: int | None) -> "DeviceSparseFeatures":
        """Return the features, dropped out anew; without dropout for None."""
        self.values = (None, None)
        if epoch is not None:
            values = self.matrix.values * self.mask(epoch)
            self.values = values, self.tensors.take(values, self.order)
        return self

    def matmat(self, rows: Any) -> Any:
        """Return X @ W. (num_owned, width)"""
        return self.matrix.matmat(rows, self.values[0])

    def rmatmat(self, rows: Any) -> Any:
        """Return X.T @ G. (num_features, width)"""
        return self.transposed.matmat(rows, self.values[1])


def aggregate_features(aggregate: Callable[[Rows], Rows], features: Floats | sp.csr_array) -> Floats | sp.csr_array:
    """Return A_hat X, sparse if X is; made in blocks of columns, for the halo rows of all would be as large as X."""
    if not isinstance(features, sp.csr_array):
        aggregated = np.empty(features.shape, features.dtype)
        for begin in range(0, features.shape[1], _DENSE_COLUMNS):
            block = slice(begin, begin + _DENSE_COLUMNS)
            aggregated[:, block] = aggregate(_columns(features, block))
        return aggregated
    columns = features.tocsc()
    blocks = [
        sp.csr_array(aggregate(columns[:, begin : begin + _COLUMNS].toarray()))
        for begin in range(0, features.shape[1], _COLUMNS)
    ]
    return sp.csr_array(sp.hstack(blocks, format="csr"))


def _columns(features: Floats, block: slice) -> Rows:
    """Return some columns as an array of their own; pages that are mapped from a file are not held meanwhile."""
    taken = np.empty((len(features), len(range(features.shape[1])[block])), features.dtype)
    for begin in range(0, len(features), _ROWS):
        rows = slice(begin, begin + _ROWS)
        taken[rows] = features[rows, block]
        if isinstance(features.base, mmap):
            features.base.madvise(MADV_DONTNEED)
    return taken
