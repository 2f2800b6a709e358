"""The features X on a device, as operators on weights; dropped out anew forward and backward.

What dropout leaves is not kept from forward to backward: to make it again costs one pass over the features, to keep it
would cost their memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.torch_dropout import DeviceMasks
from unilaunch_gcn.torch_epilogue import Passes
from unilaunch_graph.arrays import DeviceArrays, Rows
from unilaunch_graph.operators.epilogue import Dropout, Epilogue


class DenseFeatures:
    """X, dense.

    Args:
        rows: X. (num_owned, num_features)
        passes: What applies dropout.
    """

    def __init__(self, rows: torch.Tensor, passes: Passes) -> None:
        self.rows, self.passes = rows, passes

    def dropped(self, dropout: Dropout | None) -> torch.Tensor:
        """Return X after dropout."""
        if dropout is None:
            return self.rows
        return self.passes.apply(Epilogue(dropout=dropout), self.rows, torch.empty_like(self.rows))

    def matmat(self, rows: torch.Tensor, dropout: Dropout | None) -> torch.Tensor:
        """Return X @ W. (num_owned, width)"""
        return self.dropped(dropout) @ rows.to(self.rows.dtype)

    def rmatmat(self, rows: torch.Tensor, dropout: Dropout | None) -> torch.Tensor:
        """Return X.T @ G. (num_features, width)"""
        return self.dropped(dropout).T @ rows


class SparseFeatures:
    """X, sparse, by torch's own operations.

    Args:
        features: X.
        tensors: torch on the device.
        masks: The dropout masks.
        kind: Type of the rows.
    """

    def __init__(self, features: sp.csr_array, tensors: DeviceArrays, masks: DeviceMasks, kind: torch.dtype) -> None:
        self.matrix, self.transposed, self.kind = *_both(features, tensors), kind
        rows, columns = features.tocoo().coords
        self.mask = masks.of_entries(rows, columns, features.shape[1])
        columns, rows = features.T.tocsr().tocoo().coords
        self.transposed_mask = masks.of_entries(rows, columns, features.shape[1])

    def matmat(self, rows: torch.Tensor, dropout: Dropout | None) -> torch.Tensor:
        """Return X @ W. (num_owned, width)"""
        return self._product(self.matrix, rows, self.mask if dropout else None).to(self.kind)

    def rmatmat(self, rows: torch.Tensor, dropout: Dropout | None) -> torch.Tensor:
        """Return X.T @ G. (num_features, width)"""
        return self._product(self.transposed, rows, self.transposed_mask if dropout else None)

    def _product(self, matrix: Any, rows: torch.Tensor, mask: Callable[[int], torch.Tensor] | None) -> torch.Tensor:
        product: torch.Tensor = matrix.matmat(rows, matrix.values * mask(0) if mask else None)
        return product


class FusedSparseFeatures:
    """X, sparse, whose entries a kernel drops out while it multiplies.

    Args:
        features: X.
        tensors: torch on the device.
        multiply: `triton_kernels.multiply`.
        kind: Type of the rows.
    """

    def __init__(
        self, features: sp.csr_array, tensors: DeviceArrays, multiply: Callable[..., torch.Tensor],
        kind: torch.dtype,
    ) -> None:  # fmt: skip
        self.matrix, self.transposed, self.kind = *_both(features, tensors), kind
        self.multiply = multiply

    def matmat(self, rows: torch.Tensor, dropout: Dropout | None) -> torch.Tensor:
        """Return X @ W. (num_owned, width)"""
        out = rows.new_empty(self.matrix.shape[0], rows.shape[1], dtype=self.kind)
        entries = ("rows", dropout) if dropout else None
        return self.multiply(self.matrix, rows.to(self.kind).contiguous(), out, entries=entries)

    def rmatmat(self, rows: torch.Tensor, dropout: Dropout | None) -> torch.Tensor:
        """Return X.T @ G. (num_features, width)"""
        out = rows.new_empty(self.transposed.shape[0], rows.shape[1])
        entries = ("columns", dropout) if dropout else None
        return self.multiply(self.transposed, rows.contiguous(), out, entries=entries)


Features = DenseFeatures | SparseFeatures | FusedSparseFeatures


def _both(features: sp.csr_array, tensors: DeviceArrays) -> tuple[Any, Any]:
    """Return X and its transpose on the device."""
    transposed = features.T.tocsr()
    return (
        tensors.sparse(features.indptr, features.indices, features.data, features.shape),
        tensors.sparse(transposed.indptr, transposed.indices, transposed.data, transposed.shape),
    )


class Dropped:
    """The features with the dropout of an epoch, as a linear operator on weights.

    Args:
        features: X.
        dropout: The dropout; None: nothing is dropped.
    """

    def __init__(self, features: Features, dropout: Dropout | None) -> None:
        self.features, self.dropout = features, dropout

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return X @ W, in the type of the rows of a layer."""
        self.kind = rows.dtype
        return self.features.matmat(rows, self.dropout)

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return X.T @ G, in the type of the weights."""
        return self.features.rmatmat(rows, self.dropout).to(self.kind)


def on_arrays(operator: LinearOperator, tensors: DeviceArrays, kind: torch.dtype) -> Callable[[Rows], Rows]:
    """Return what multiplies arrays of the host by an operator of the device, in the arrays' type.

    Args:
        operator: Takes and returns tensors.
        tensors: torch on the device.
        kind: Type of the rows that it takes.
    """

    def multiply(rows: Rows) -> Rows:
        product = operator.matmat(tensors.tensor(np.ascontiguousarray(rows)).to(kind))
        array: Rows = product.to(torch.float64).cpu().numpy().astype(rows.dtype)
        return array

    return multiply
