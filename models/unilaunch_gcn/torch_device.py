"""torch on a device, as the GCN asks for it: with Triton's kernels on a GPU, or torch's operations."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn import torch_epilogue
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.epilogue import Dropout, Epilogue
from unilaunch_gcn.features import first_features
from unilaunch_gcn.layers import NetworkConfig
from unilaunch_gcn.tensors import DeviceTensors, Masks, Operation
from unilaunch_gcn.torch_epilogue import Passes, hash_places, mask_of_rows
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.arrays import Floats, FloatType, Rows
from unilaunch_graph.dropout import stream_keys
from unilaunch_graph.exchange.meter import HostWatch, Watch
from unilaunch_graph.operators.torch_masks import kept
from unilaunch_graph.partition.part import Part
from unilaunch_torch.events import EventWatch
from unilaunch_torch.linear import apply
from unilaunch_torch.sparse import CsrArrays, KernelMatrix, SparseMatrix


class DeviceMasks(Masks):
    """Dropout on a device. Nothing is copied from the host within an epoch but the epoch's keys, before it begins.

    Args:
        dropout: Share that is dropped.
        seed: Seed of the training.
        owned: Global ids of the owned nodes, on the device. (num_owned,) int64
        dtype: Type of the masks.
        num_layers: Number of layers.
    """

    def __init__(self, dropout: float, seed: int, owned: torch.Tensor, dtype: FloatType, num_layers: int) -> None:
        self.dropout, self.seed, self.owned = dropout, seed, owned
        self.kind: torch.dtype = getattr(torch, dtype.name)
        self.keys = torch.zeros(num_layers, 2, dtype=torch.int64, device=owned.device)
        # Two, in turn: the copy of one epoch may still be queued while the next epoch's keys are written.
        pinned = owned.device.type == "cuda"
        self.staged = [torch.zeros(num_layers, 2, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]

    def start_epoch(self, epoch: int) -> None:
        """Queue the copy of an epoch's keys to the device."""
        staged = self.staged[epoch % 2]
        staged.numpy()[:] = [stream_keys(self.seed, epoch, depth) for depth in range(len(staged))]
        self.keys.copy_(staged, non_blocking=True)

    def of_layer(self, depth: int) -> Dropout:
        """Return the dropout of the rows that enter layer *depth*, in the epoch that has been started."""
        return Dropout(self.owned, self.keys[depth], self.dropout)

    @override
    def rows(self, epoch: int, depth: int, width: int) -> torch.Tensor:
        """Return the mask of the epoch that has been started. (num_owned, width)"""
        return mask_of_rows(self.of_layer(depth), width, self.kind)

    @override
    def of_entries(self, rows: NDArray[Any], columns: NDArray[Any], width: int) -> Callable[[int], torch.Tensor]:
        row, column = (torch.as_tensor(places.astype(np.int64), device=self.keys.device) for places in (rows, columns))

        def mask(_: int) -> torch.Tensor:
            row_keys, column_keys = hash_places(self.of_layer(0), width)
            return kept(row_keys[row] ^ column_keys[column], self.dropout, self.kind)

        return mask


class TorchDeviceTensors(TorchTensors, DeviceTensors):
    """torch on a device: the weights are kept there too.

    Attributes:
        kernels: `triton_kernels`; None: torch's own operations do the same.

    Args:
        device: The device: "cuda:0".
        is_bfloat16: Rows and products are bfloat16, sums and weights float32.
        is_fused: Use Triton's kernels; None: on a GPU, if Triton is installed.
    """

    framework = "torch"
    numeric = torch

    def __init__(self, device: str, *, is_bfloat16: bool = False, is_fused: bool | None = None) -> None:
        super().__init__(is_bfloat16=is_bfloat16)
        self.device = torch.device(device)
        # One type for the sum over ranks: HCCL has no float64.
        self.summed = np.dtype("float32" if self.device.type == "npu" else "float64")
        if is_fused is None:
            is_fused = self.device.type == "cuda" and find_spec("triton") is not None
        self.kernels = _triton_kernels(self.device) if is_fused else None

    @override
    def agree(self, collectives: Collectives) -> None:
        without = torch.tensor([float(self.kernels is None)], device=self.device)
        collectives.all_reduce(without)
        if without.item():
            self.kernels = None

    @property
    def passes(self) -> torch_epilogue.Passes:
        """What applies an epilogue."""
        return self.kernels or torch_epilogue

    def kind(self, dtype: FloatType) -> torch.dtype:
        """Return the type of rows of a training whose weights have the type *dtype*."""
        kind: torch.dtype = torch.bfloat16 if self.is_bfloat16 else getattr(torch, dtype.name)
        return kind

    @override
    def tensor(self, array: Any) -> torch.Tensor:
        return array if isinstance(array, torch.Tensor) else torch.as_tensor(np.array(array), device=self.device)

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return partial(apply, operator)

    @override
    def product(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rows @ weight.to(rows.dtype)

    @override
    def relu(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.relu(rows)

    @override
    def concatenate(self, arrays: list[torch.Tensor], axis: int) -> torch.Tensor:
        return torch.cat(arrays, axis)

    @override
    def empty(self, shape: tuple[int, int], like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(shape)

    @override
    def take(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return rows.index_select(0, places)

    @override
    def pack(self, rows: torch.Tensor, places: torch.Tensor, factors: torch.Tensor | None = None) -> torch.Tensor:
        taken: torch.Tensor = super().pack(rows, places, factors)  # multiplied in the type of the factors, then rounded
        return taken.bfloat16() if self.is_bfloat16 else taken

    @override
    def sparse(
        self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]
    ) -> SparseMatrix | KernelMatrix:
        if self.kernels is None:
            return SparseMatrix(indptr, indices, values, shape, self.device)
        return KernelMatrix(CsrArrays(indptr, indices, values, shape, self.device), self.kernels.multiply)

    @override
    def buffer(self, weights: Floats) -> torch.Tensor:
        return self.tensor(weights)

    @override
    def message(self, value: torch.Tensor, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = (value.reshape(1), value.new_zeros(1), *(gradient.reshape(-1) for gradient in gradients))
        return torch.cat(parts).to(getattr(torch, self.summed.name))

    @override
    def local(self, message: torch.Tensor) -> torch.Tensor:
        return message

    @override
    def watch(self) -> Watch:
        return EventWatch() if self.device.type == "cuda" else HostWatch()

    @override
    def masks(
        self, dropout: float, seed: int, nodes: NDArray[np.int64], dtype: FloatType, num_layers: int
    ) -> DeviceMasks:
        return DeviceMasks(dropout, seed, self.tensor(nodes), dtype, num_layers)


def _triton_kernels(device: torch.device) -> ModuleType | None:
    """Return `triton_kernels`; None, with a warning, if Triton cannot compile and start one of them here."""
    try:
        from unilaunch_gcn import triton_kernels

        triton_kernels.apply(Epilogue(relu=True), *torch.zeros(2, 1, 1, device=device))
    except Exception as error:  # noqa: BLE001  (Triton's own, those of compilers that it starts, an assertion on libcuda)
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        warnings.warn(
            f"Triton compiles no kernel here, so torch's own operations train, which is slower: {reason}: install a C "
            "compiler and Python's headers (gcc, python3-dev)",
            stacklevel=3,
        )
        return None
    return triton_kernels


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

    def __init__(self, features: sp.csr_array, tensors: DeviceTensors, masks: DeviceMasks, kind: torch.dtype) -> None:
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
        self, features: sp.csr_array, tensors: DeviceTensors, multiply: Callable[..., torch.Tensor],
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


def _both(features: sp.csr_array, tensors: DeviceTensors) -> tuple[Any, Any]:
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


def on_arrays(operator: LinearOperator, tensors: DeviceTensors, kind: torch.dtype) -> Callable[[Rows], Rows]:
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
        self.aggregate, self.tensors, self.masks, self.order = aggregate, tensors, masks, config.layers[0].order
        self.kind = tensors.kind(config.dtype)
        features, aggregated = first_features(config, part, on_arrays(aggregate, tensors, self.kind))
        self.own = self._load(features)
        self.aggregated: Features | None = None
        if aggregated is not None:
            self.aggregated = self.own if aggregated is features else self._load(aggregated)

    def operators(self, *, drops: bool) -> tuple[LinearOperator, LinearOperator]:
        """Return what *weight* and *self_weight* of the first layer are multiplied by, as `FirstLayer.operators`.

        Args:
            drops: With the dropout of the epoch that has been started.
        """
        dropout = self.masks.of_layer(0) if drops else None
        own = Dropped(self.own, dropout)
        if self.aggregated:
            return Dropped(self.aggregated, None), own
        if self.order != "aggregation first":
            return own, own
        rows = cast("DenseFeatures", self.own).dropped(dropout)
        return Dropped(DenseFeatures(self.aggregate.matmat(rows), self.tensors.passes), None), own

    def _load(self, features: Floats | sp.csr_array) -> Features:
        if isinstance(features, sp.csr_array):
            if kernels := self.tensors.kernels:
                return FusedSparseFeatures(features, self.tensors, kernels.multiply, self.kind)
            return SparseFeatures(features, self.tensors, self.masks, self.kind)
        rows = (
            torch.from_numpy(np.array(features, order="C")).to(self.kind).to(self.tensors.device)
        )  # rounded on the host
        return DenseFeatures(rows, self.tensors.passes)
