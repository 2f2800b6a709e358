"""The features on a device, as operators on the first layer's weights; dropped out anew forward and backward.

What dropout leaves is not kept from forward to backward: to make it again costs one pass over the features, to keep it
would cost their memory.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
import torch

from unilaunch.linear import LinearOperator
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.torch_device_tensors import TorchDeviceTensors
from unilaunch_graph.arrays import Floats, Rows
from unilaunch_graph.operators.aggregation import Aggregation
from unilaunch_graph.operators.epilogue import Dropout, Epilogue
from unilaunch_graph.operators.features import aggregate_features
from unilaunch_graph.operators.torch_dropout import DeviceMasks
from unilaunch_graph.partition.part import Part


class TorchFeatures:
    """What the first layer starts from.

    Args:
        config: What is trained.
        part: This rank's part.
        aggregate: A_hat.
        tensors: torch on the device.
        masks: The dropout masks.
    """

    def __init__(
        self, config: NetworkConfig, part: Part, aggregate: Aggregation, tensors: TorchDeviceTensors, masks: DeviceMasks
    ) -> None:
        features = part.features.astype(config.dtype, copy=False)
        self.aggregate, self.tensors, self.masks, self.order = aggregate, tensors, masks, config.layers[0].order
        self.kind = tensors.kind(config.dtype)
        if isinstance(features, sp.csr_array) and self.order == "aggregation first":
            features = features.toarray()  # it is narrower than the hidden layer: small
        self.aggregated: Features | None = None
        if self.order == "aggregated once":
            self.aggregated = self._load(aggregate_features(_OnArrays(aggregate, tensors, self.kind), features))
        needs_own = any(parameter.name == "self_weight" for parameter in config.layers[0].parameters)
        self.own = self.aggregated if self.aggregated and not needs_own else self._load(features)

    def operators(self, epoch: int | None) -> tuple[LinearOperator, LinearOperator]:
        """Return what *weight* and *self_weight* of the first layer are multiplied by, as `FirstLayer.operators`.

        Args:
            epoch: With the dropout of this epoch, which has been started; None without dropout.
        """
        dropout = None if epoch is None else self.masks.of_layer(0)
        own = _Dropped(self.own, dropout)
        if self.aggregated:
            return _Dropped(self.aggregated, None), own
        if self.order != "aggregation first":
            return own, own
        rows = cast("DenseFeatures", self.own).dropped(dropout)
        return _Dropped(DenseFeatures(self.aggregate.matmat(rows), self.tensors), None), own

    def _load(self, features: Floats | sp.csr_array) -> "Features":
        if isinstance(features, sp.csr_array):
            if kernels := self.tensors.kernels:
                return FusedSparseFeatures(features, self.tensors, kernels.multiply, self.kind)
            return SparseFeatures(features, self.tensors, self.masks, self.kind)
        rows = (
            torch.from_numpy(np.array(features, order="C")).to(self.kind).to(self.tensors.device)
        )  # rounded on the host
        return DenseFeatures(rows, self.tensors)


class DenseFeatures:
    """X, dense.

    Args:
        rows: X. (num_owned, num_features)
        tensors: torch on the device.
    """

    def __init__(self, rows: torch.Tensor, tensors: TorchDeviceTensors) -> None:
        self.rows, self.passes = rows, tensors.passes

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

    def __init__(
        self, features: sp.csr_array, tensors: TorchDeviceTensors, masks: DeviceMasks, kind: torch.dtype
    ) -> None:
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
        self, features: sp.csr_array, tensors: TorchDeviceTensors, multiply: Callable[..., torch.Tensor],
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


def _both(features: sp.csr_array, tensors: TorchDeviceTensors) -> tuple[Any, Any]:
    """Return X and its transpose on the device."""
    transposed = features.T.tocsr()
    return (
        tensors.sparse(features.indptr, features.indices, features.data, features.shape),
        tensors.sparse(transposed.indptr, transposed.indices, transposed.data, transposed.shape),
    )


class _Dropped:
    """The features with the dropout of an epoch, as a linear operator on weights."""

    def __init__(self, features: Features, dropout: Dropout | None) -> None:
        self.features, self.dropout = features, dropout

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return X @ W, in the type of the rows of a layer."""
        self.kind = rows.dtype
        return self.features.matmat(rows, self.dropout)

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return X.T @ G, in the type of the weights."""
        return self.features.rmatmat(rows, self.dropout).to(self.kind)


class _OnArrays:
    """An operator of the device, for arrays of the host."""

    def __init__(self, operator: LinearOperator, tensors: TorchDeviceTensors, kind: torch.dtype) -> None:
        self.operator, self.tensors, self.kind = operator, tensors, kind

    def matmat(self, rows: Rows) -> Rows:
        """Return operator @ rows, in the type of *rows*."""
        product = self.operator.matmat(self.tensors.tensor(np.ascontiguousarray(rows)).to(self.kind))
        array: Rows = product.to(torch.float64).cpu().numpy().astype(rows.dtype)
        return array

    def rmatmat(self, rows: Rows) -> Rows:
        """Nobody asks for it."""
        raise NotImplementedError
