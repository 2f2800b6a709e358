"""The GCN in PyTorch: the one module here that imports torch."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its name in every PyTorch program)
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.backend import Collectives
from unilaunch_gcn.convolution import Functions, Operations, forward
from unilaunch_gcn.loss import CrossEntropy
from unilaunch_gcn.network import Network, Problem, by_layer, count_right, initial_weights, views
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_graph.arrays import Arrays, Floats, Ids, Indices
from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.dropout import stream_keys, threshold
from unilaunch_graph.exchange.column_switch import ColumnSwitch
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.operators.aggregation import DenseFeatures
from unilaunch_graph.operators.device import ColumnEdges, DeviceAggregation, DeviceHalo, HaloEdges
from unilaunch_graph.operators.normalization import edge_weights, node_scales
from unilaunch_graph.partition.part import Part
from unilaunch_torch.linear import OnHost, Operator, apply
from unilaunch_torch.sparse import SparseMatrix


def functions(config: NetworkConfig) -> Functions:
    """Return torch's functions, in the precision of the training."""
    product = product_in_bfloat16 if config.is_bfloat16 else torch.matmul
    return Functions(product, relu=F.relu, mean=lambda rows: rows.mean(dim=1, keepdim=True))


def product_in_bfloat16(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the product of what is rounded to bfloat16, as float32; its gradient is made alike."""
    return (rows.bfloat16() @ weight.bfloat16()).float()


def operations_of(aggregate: Operator, weighted: Operator, own: Operator) -> Operations:
    """Return linear operators as differentiable operations."""
    return Operations(*(partial(apply, operator) for operator in (aggregate, weighted, own)))


class _KnownGradient(torch.autograd.Function):
    """A scalar of which the gradient by the logits is known.

    Where `torch.autograd.grad` is given a gradient, torch imports sympy, which takes each rank 0.6 s.
    """

    @staticmethod
    @override
    def forward(ctx: Any, logits: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return logits.new_zeros(())

    @staticmethod
    @override
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


class TorchNetwork(Network):
    """The GCN on the host: torch's autograd over the operators that both frameworks share."""

    def __init__(self, problem: Problem) -> None:
        config = problem.config
        self.problem, self.layers = problem, config.layers
        self.flat: Floats = initial_weights(config.layers, config.seed).astype(config.dtype)
        self.tensors = [torch.from_numpy(view).requires_grad_() for view in views(self.flat, config.layers)]
        self.loss = CrossEntropy(problem.part)
        self.use = functions(config)
        self.rounded: tuple[Any, torch.Tensor] | None = None

    @override
    def gradient(self, epoch: int) -> NDArray[np.float64]:
        logits = self._forward(epoch)
        loss, gradient = self.loss.value_and_gradient(logits.detach().numpy())
        known = _KnownGradient.apply(logits, torch.from_numpy(gradient))  # type: ignore[no-untyped-call]
        gradients = torch.autograd.grad(known, self.tensors)
        return np.concatenate([[loss, 0.0], *(gradient.numpy().ravel() for gradient in gradients)], dtype=np.float64)

    @override
    def evaluate(self) -> NDArray[np.float64]:
        return count_right(self.logits(), self.problem.part)

    @override
    def logits(self) -> Floats:
        with torch.no_grad():
            logits: Floats = self._forward(None).numpy()
        return logits

    @override
    def weights(self) -> list[Floats]:
        return [view.copy() for view in views(self.flat, self.layers)]

    def _forward(self, epoch: int | None) -> torch.Tensor:
        problem = self.problem
        weighted, own = problem.inputs.operators(epoch)
        operations = operations_of(*map(OnHost, (problem.aggregate, weighted, own)))
        if self.problem.config.is_bfloat16 and isinstance(weighted, DenseFeatures):
            product = partial(product_in_bfloat16, self._rounded(weighted.features))
            operations = replace(operations, weighted=product, own=product if own is weighted else operations.own)
        mask = None if epoch is None or not problem.config.dropout else self._mask(epoch)
        weights = by_layer(self.tensors, self.layers)
        logits: torch.Tensor = forward(self.layers, weights, operations, mask, self.use)
        return logits

    def _rounded(self, features: Floats) -> torch.Tensor:
        """Return the features in bfloat16; those that no dropout changes are rounded once."""
        if self.rounded is None or self.rounded[0] is not features:
            self.rounded = features, torch.from_numpy(features).bfloat16()
        return self.rounded[1]

    def _mask(self, epoch: int) -> Callable[[int], torch.Tensor]:
        return lambda depth: torch.from_numpy(self.problem.mask(epoch, depth))


class TorchDeviceNetwork(Network):
    """The GCN on a device: features, masks, halo and weights stay in its memory.

    Args:
        config: What is trained.
        part: This rank's part.
        collectives: The ranks' collectives on tensors of the device.
        meter: Counts bytes and waiting.
        device_name: The device: "cuda:0".
    """

    def __init__(
        self, config: NetworkConfig, part: Part, collectives: Collectives, meter: Meter, device_name: str
    ) -> None:
        device = torch.device(device_name)
        self.config, self.layers = config, config.layers
        self.flat = torch.as_tensor(initial_weights(config.layers, config.seed).astype(config.dtype), device=device)
        self.tensors = [view.requires_grad_() for view in views(self.flat, config.layers)]
        self.labels = torch.as_tensor(np.maximum(part.labels, 0), device=device)
        self.share = torch.as_tensor(part.loss_share().astype(config.dtype), device=device)
        self.known = torch.as_tensor(np.array(part.labels), device=device)
        self.split = torch.as_tensor(np.array(part.split), device=device)
        self.dropout = DeviceDropout(config, part.owned, device)
        self.aggregate = aggregation_of(config, part, collectives, meter, device)
        self.inputs = DeviceInputs(config, part, self.aggregate, self.dropout, device)
        self.use = functions(config)
        # One type for the sum over ranks: HCCL has no float64.
        self.summed = torch.float32 if device.type == "npu" else torch.float64

    @override
    def gradient(self, epoch: int) -> torch.Tensor:
        losses = F.cross_entropy(self._forward(epoch), self.labels, reduction="none")
        loss = (losses * self.share).sum()
        gradients = torch.autograd.grad(loss, self.tensors)
        head = (loss.detach().reshape(1), loss.new_zeros(1))
        return torch.cat([*head, *(gradient.reshape(-1) for gradient in gradients)]).to(self.summed)

    @override
    def evaluate(self) -> torch.Tensor:
        with torch.no_grad():
            logits = self._forward(None)
        right = logits.argmax(dim=1) == self.known
        counts = [(right & (self.split == use)).sum() for use in (TRAIN, VAL, TEST)]
        validated = self.split == VAL
        loss = F.cross_entropy(logits[validated].to(self.summed), self.labels[validated], reduction="sum")
        loss += (logits * 0.0).sum()  # NaN if any logit is not finite
        return torch.stack([*(count.to(self.summed) for count in counts), loss])

    @override
    def logits(self) -> Floats:
        with torch.no_grad():
            logits: Floats = self._forward(None).cpu().numpy()
        return logits

    @override
    def host(self, buffer: torch.Tensor) -> Floats:
        numbers: Floats = buffer.detach().cpu().numpy()
        return numbers

    @override
    def shared(self, numbers: Floats) -> torch.Tensor:
        return torch.as_tensor(numbers, device=self.flat.device)

    @override
    def weights(self) -> list[Floats]:
        return [view.detach().cpu().numpy().copy() for view in views(self.flat, self.layers)]

    def _forward(self, epoch: int | None) -> torch.Tensor:
        mask = None if epoch is None or not self.config.dropout else self._mask(epoch)
        operations = operations_of(self.aggregate, *self.inputs.operators(epoch))
        weights = by_layer(self.tensors, self.layers)
        logits: torch.Tensor = forward(self.layers, weights, operations, mask, self.use)
        return logits

    def _mask(self, epoch: int) -> Callable[[int], torch.Tensor]:
        return lambda depth: self.dropout.rows(epoch, depth, self.layers[depth].width_in)


def aggregation_of(
    config: NetworkConfig, part: Part, collectives: Collectives, meter: Meter, device: torch.device
) -> DeviceAggregation:
    """Return A_hat on a device: over the halo, or, where ranks divide columns, over all-to-alls."""
    found = node_scales(config.conv, part.strengths, part.loops)
    scales = [
        torch.as_tensor(factor.astype(config.dtype)[:, None], device=device)
        for factor in (found.left, found.right, found.loops)
    ]
    arrays = Arrays(torch.cat, lambda shape, like: like.new_empty(shape))

    def matrix(indptr: Ids, indices: Indices, weights: NDArray[np.float32], shape: tuple[int, int]) -> SparseMatrix:
        return SparseMatrix(indptr, indices, edge_weights(weights, indices, config.dtype), shape, device)

    if whole := part.adjacency:
        switch = ColumnSwitch(part, whole, collectives, meter, arrays)
        shape = (part.num_nodes, part.num_nodes)
        edges = ColumnEdges(switch, matrix(whole.indptr, whole.indices, whole.weights, shape))
        return DeviceAggregation(edges, scales)
    send_rows = torch.as_tensor(part.send_rows.astype(np.int64), device=device)
    halo = DeviceHalo(part, collectives, meter, lambda rows: rows.index_select(0, send_rows), arrays.empty)
    own, others = (part.num_owned, part.num_owned), (part.num_owned, part.num_halo)
    owned = matrix(part.owned_indptr, part.owned_indices, part.owned_weights, own)
    remote = matrix(part.halo_indptr, part.halo_indices, part.halo_weights, others)
    return DeviceAggregation(HaloEdges(halo, owned, remote), scales)


class DeviceDropout:
    """The masks of `dropout`, made on the device: 32-bit words in int64, since torch has no unsigned products."""

    def __init__(self, config: NetworkConfig, nodes: NDArray[np.int64], device: torch.device) -> None:
        self.config, self.device = config, device
        self.low = torch.as_tensor(nodes & 0xFFFFFFFF, device=device)
        self.high = torch.as_tensor(nodes >> 32, device=device)
        self.least = min(threshold(config.dropout), 2**32 - 1)
        self.scale = 1.0 / (1.0 - config.dropout)
        self.dtype = getattr(torch, config.dtype.name)

    def rows(self, epoch: int, depth: int, width: int) -> torch.Tensor:
        """Return the mask of the owned rows that enter layer *depth*. (num_owned, width)"""
        rows, columns = self._keys(epoch, depth, width)
        return self._mask(rows[:, None] ^ columns)

    def entries(self, epoch: int, row: torch.Tensor, column: torch.Tensor, width: int) -> torch.Tensor:
        """Return the mask of single features, given the local row and the column of each. (entries,)"""
        rows, columns = self._keys(epoch, 0, width)
        return self._mask(rows[row] ^ columns[column])

    def _keys(self, epoch: int, depth: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `dropout.row_keys` and `dropout.column_keys`; nothing is copied from the host."""
        first, second = stream_keys(self.config.seed, epoch, depth)
        columns = torch.arange(width, device=self.device)
        return _mix(self.low ^ _mix(self.high ^ first)), _mix((columns + second) & 0xFFFFFFFF)

    def _mask(self, words: torch.Tensor) -> torch.Tensor:
        return (_mix(words) >= self.least).to(self.dtype) * self.scale


def _mix(words: torch.Tensor) -> torch.Tensor:
    """Hash words as `dropout.mix` does."""
    words = words ^ (words >> 16)
    words = (words * 0x7FEB352D) & 0xFFFFFFFF
    words = words ^ (words >> 15)
    words = (words * 0x846CA68B) & 0xFFFFFFFF
    return words ^ (words >> 16)


class DeviceInputs:
    """The features on a device; the same operators as `inputs.Inputs`."""

    def __init__(
        self, config: NetworkConfig, part: Part, aggregate: Operator, dropout: DeviceDropout, device: torch.device
    ) -> None:
        self.config, self.aggregate, self.dropout = config, aggregate, dropout
        self.order = config.layers[0].order
        features: Any = part.features.astype(config.dtype)
        if hasattr(features, "indptr") and self.order == "product first":
            transposed = features.T.tocsr()
            rank_of = features.copy()
            rank_of.data = np.arange(features.nnz)
            self.from_rows = torch.as_tensor(rank_of.T.tocsr().data, device=device)
            self.sparse: tuple[SparseMatrix, SparseMatrix] | None = (
                SparseMatrix(features.indptr, features.indices, features.data, features.shape, device),
                SparseMatrix(transposed.indptr, transposed.indices, transposed.data, transposed.shape, device),
            )
            return
        self.sparse = None
        dense = torch.as_tensor(
            features.toarray() if hasattr(features, "indptr") else np.array(features), device=device
        )
        self.aggregated = aggregate.matmat(dense) if self.order == "aggregated once" else None
        self.dense = dense

    def operators(self, epoch: int | None) -> tuple[Operator, Operator]:
        """Return what the first layer's two weights are multiplied by, as `inputs.Inputs` does."""
        dropped = epoch is not None and bool(self.config.dropout)
        if self.sparse:
            values = self._sparse_values(epoch) if epoch is not None and dropped else None
            return (features := _SparseFeatures(self.sparse, values)), features
        own = self.dense
        if epoch is not None and dropped:
            own = own * self.dropout.rows(epoch, 0, own.shape[1])
        weighted = own if self.aggregated is None else self.aggregated
        if self.order == "aggregation first":
            weighted = self.aggregate.matmat(own)
        return _DenseFeatures(weighted), _DenseFeatures(own)

    def _sparse_values(self, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        matrix = self.sparse[0]  # type: ignore[index]
        mask = self.dropout.entries(epoch, matrix.row_of_entry(), matrix.indices, matrix.shape[1])
        values = matrix.values * mask
        return values, values[self.from_rows]


class _SparseFeatures:
    def __init__(
        self, matrices: tuple[SparseMatrix, SparseMatrix], values: tuple[torch.Tensor, torch.Tensor] | None
    ) -> None:
        self.matrices, self.values = matrices, values or (matrices[0].values, matrices[1].values)

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        return self.matrices[0].matmat(rows, self.values[0])

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        return self.matrices[1].matmat(rows, self.values[1])


class _DenseFeatures:
    def __init__(self, features: torch.Tensor) -> None:
        self.features = features

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        return self.features @ rows

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        return self.features.T @ rows
