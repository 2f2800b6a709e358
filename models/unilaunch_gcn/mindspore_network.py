"""The GCN in MindSpore: the one module here that imports it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.backend import Collectives
from unilaunch_gcn.convolution import Functions, Operations, forward
from unilaunch_gcn.loss import CrossEntropy
from unilaunch_gcn.network import Network, Problem, by_layer, count_right, initial_weights, views
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_graph.arrays import Arrays, Floats, Ids, Indices, Rows
from unilaunch_graph.dropout import fill_mask, stream_keys
from unilaunch_graph.exchange.column_switch import ColumnSwitch
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import from_bfloat16, to_bfloat16
from unilaunch_graph.operators.device import ColumnEdges, DeviceAggregation, DeviceHalo, HaloEdges
from unilaunch_graph.operators.normalization import edge_weights, node_scales
from unilaunch_graph.partition.part import Part
from unilaunch_mindspore.linear import Apply, OnHost, Operator
from unilaunch_mindspore.sparse import SparseMatrix

Mask = Callable[[int], Tensor]
#: mm: the backward of matmul takes twice as long.
MEAN = partial(Tensor.mean, axis=1, keep_dims=True)


def functions(config: NetworkConfig, in_bfloat16: Callable[[Tensor, Tensor], Tensor]) -> Functions:
    """Return MindSpore's functions, in the precision of the training."""
    return Functions(in_bfloat16 if config.is_bfloat16 else ops.mm, relu=ops.relu, mean=MEAN)


def product_in_bfloat16(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the product of what is rounded to bfloat16, as float32."""
    return ops.mm(rows.astype(ms.bfloat16), weight.astype(ms.bfloat16)).astype(ms.float32)


def product_of_rounded(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the same on cpu, where MindSpore multiplies no bfloat16: no faster than float32."""
    rounded = Apply(OnHost(Rounding()))
    return ops.mm(rounded(rows), rounded(weight))


class Rounding:
    """Rounding to bfloat16, of rows and of gradients, as an operator."""

    def matmat(self, rows: Rows) -> Rows:
        """Return the rows, rounded."""
        return from_bfloat16(to_bfloat16(np.ascontiguousarray(rows)))

    rmatmat = matmat


def operations_of(aggregate: Apply, weighted: Operator, own: Operator) -> Operations:
    """Return linear operators as differentiable cells."""
    return Operations(aggregate, Apply(weighted), Apply(own))


class MindSporeNetwork(Network):
    """The GCN on the host: MindSpore's autograd over the operators that both frameworks share."""

    def __init__(self, problem: Problem) -> None:
        config = problem.config
        self.problem, self.layers = problem, config.layers
        self.flat: Floats = initial_weights(config.layers, config.seed).astype(config.dtype)
        self.aggregate = Apply(OnHost(problem.aggregate))
        self.use = functions(config, product_of_rounded)
        self.loss = _Loss(CrossEntropy(problem.part))
        self.gradients = ms.grad(self._loss, tuple(range(len(self._tensors()))))
        self.epoch: int | None = None

    @override
    def gradient(self, epoch: int) -> NDArray[np.float64]:
        self.epoch = epoch
        gradients = self.gradients(*self._tensors())
        if not self.problem.part.num_owned:
            return np.zeros(2 + len(self.flat))  # MindSpore's product over no rows is whatever the memory held
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        arrays = (gradient.asnumpy().ravel() for gradient in gradients)
        return np.concatenate([[self.loss.value, 0.0], *arrays], dtype=np.float64)

    @override
    def evaluate(self) -> NDArray[np.float64]:
        return count_right(self.logits(), self.problem.part)

    @override
    def logits(self) -> Floats:
        logits: Floats = self._forward(None, self._tensors()).asnumpy()
        return logits

    @override
    def weights(self) -> list[Floats]:
        return [view.copy() for view in views(self.flat, self.layers)]

    def _tensors(self) -> list[Tensor]:
        return [Tensor.from_numpy(view) for view in views(self.flat, self.layers)]

    def _loss(self, *weights: Tensor) -> Tensor:
        return self.loss(self._forward(self.epoch, weights))

    def _forward(self, epoch: int | None, weights: Sequence[Tensor]) -> Tensor:
        problem = self.problem
        operations = operations_of(self.aggregate, *map(OnHost, problem.inputs.operators(epoch)))
        dropping = epoch is not None and problem.config.dropout
        mask = _host_mask(problem, epoch) if epoch is not None and dropping else None
        own = by_layer(weights, self.layers)
        logits: Tensor = forward(self.layers, own, operations, mask, self.use)
        return logits


class _Loss(nn.Cell):  # type: ignore[misc]
    """The shared loss as a cell: it knows its gradient by the time MindSpore asks for it."""

    def __init__(self, loss: CrossEntropy) -> None:
        super().__init__()
        self.loss = loss
        self.value = 0.0

    def construct(self, logits: Tensor) -> Tensor:
        self.value, gradient = self.loss.value_and_gradient(logits.asnumpy())
        self.gradient = Tensor.from_numpy(gradient)
        return Tensor(self.value, logits.dtype)

    def bprop(self, logits: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor]:  # noqa: ARG002  (MindSpore's signature)
        return (self.gradient,)


def _host_mask(problem: Problem, epoch: int) -> Mask:
    return lambda depth: Tensor.from_numpy(problem.mask(epoch, depth))


class MindSporeDeviceNetwork(Network):
    """The GCN on a device (Ascend): features, halo and activations stay in its memory; the few weights are the host's.

    Args:
        config: What is trained.
        part: This rank's part.
        collectives: The ranks' collectives on tensors of the device.
        meter: Counts bytes and waiting.
    """

    def __init__(self, config: NetworkConfig, part: Part, collectives: Collectives, meter: Meter) -> None:
        self.config, self.layers, self.part = config, config.layers, part
        self.flat: Floats = initial_weights(config.layers, config.seed).astype(config.dtype)
        self.labels = Tensor(np.maximum(part.labels, 0).astype(np.int32))
        self.share = Tensor(part.loss_share().astype(config.dtype))
        self.aggregation = aggregation_of(config, part, collectives, meter)
        self.aggregate = Apply(self.aggregation)
        self.use = functions(config, product_in_bfloat16)
        self.features = _dense(part, config)
        is_once = self.layers[0].order == "aggregated once"
        self.aggregated = self.aggregation.matmat(self.features) if is_once else None
        self.loss_and_gradients = ms.value_and_grad(self._loss, tuple(range(len(self._tensors()))))
        self.epoch: int | None = None

    @override
    def gradient(self, epoch: int) -> Tensor:
        self.epoch = epoch
        loss, gradients = self.loss_and_gradients(*self._tensors())
        if not self.part.num_owned:
            return Tensor(np.zeros_like(self.flat, shape=2 + len(self.flat)))  # as in MindSporeNetwork
        head = (loss.reshape(1), ops.zeros_like(loss.reshape(1)))
        return ops.concat((*head, *(gradient.reshape(-1) for gradient in gradients)))

    @override
    def local(self, gradient: Tensor) -> Floats:
        return np.array(gradient.asnumpy())

    @override
    def evaluate(self) -> Tensor:
        return Tensor(count_right(self.logits(), self.part).astype(np.float32))

    @override
    def logits(self) -> Floats:
        logits: Floats = self._forward(None, self._tensors()).asnumpy()
        return logits

    @override
    def shared(self, numbers: Floats) -> Tensor:
        return Tensor(numbers)

    @override
    def weights(self) -> list[Floats]:
        return [view.copy() for view in views(self.flat, self.layers)]

    def _tensors(self) -> list[Tensor]:
        return [Tensor(view) for view in views(self.flat, self.layers)]

    def _loss(self, *weights: Tensor) -> Tensor:
        losses = ops.cross_entropy(self._forward(self.epoch, weights), self.labels, reduction="none")
        return (losses * self.share).sum()

    def _forward(self, epoch: int | None, weights: Sequence[Tensor]) -> Tensor:
        mask = self._mask(epoch) if epoch is not None and self.config.dropout else None
        own = self.features * mask(0) if mask else self.features
        weighted = own if self.aggregated is None else self.aggregated
        if self.layers[0].order == "aggregation first":
            weighted = self.aggregation.matmat(own)
        operations = operations_of(self.aggregate, _DenseFeatures(weighted), _DenseFeatures(own))
        logits: Tensor = forward(self.layers, by_layer(weights, self.layers), operations, mask, self.use)
        return logits

    def _mask(self, epoch: int) -> Mask:
        def mask(depth: int) -> Tensor:
            out = np.empty((self.part.num_owned, self.layers[depth].width_in), self.config.dtype)
            keys = stream_keys(self.config.seed, epoch, depth)
            fill_mask(out, self.part.owned, keys, self.config.dropout)
            return Tensor(out)

        return mask


def aggregation_of(config: NetworkConfig, part: Part, collectives: Collectives, meter: Meter) -> DeviceAggregation:
    """Return A_hat on a device: over the halo, or, where ranks divide columns, over all-to-alls."""
    found = node_scales(config.conv, part.strengths, part.loops)
    scales = [Tensor(factor.astype(config.dtype)[:, None]) for factor in (found.left, found.right, found.loops)]
    arrays = Arrays(ops.cat, lambda shape, _: Tensor(np.empty(shape, config.dtype)))

    def matrix(indptr: Ids, indices: Indices, weights: NDArray[np.float32], num_rows: int) -> SparseMatrix:
        return SparseMatrix(indptr, indices, edge_weights(weights, indices, config.dtype), num_rows)

    if whole := part.adjacency:
        switch = ColumnSwitch(part, whole, collectives, meter, arrays)
        edges = ColumnEdges(switch, matrix(whole.indptr, whole.indices, whole.weights, part.num_nodes))
        return DeviceAggregation(edges, scales)
    send_rows = Tensor(np.array(part.send_rows))
    halo = DeviceHalo(part, collectives, meter, lambda rows: ops.gather(rows, send_rows, 0), arrays.empty)
    owned = matrix(part.owned_indptr, part.owned_indices, part.owned_weights, part.num_owned)
    remote = matrix(part.halo_indptr, part.halo_indices, part.halo_weights, part.num_owned)
    return DeviceAggregation(HaloEdges(halo, owned, remote), scales)


class _DenseFeatures:
    def __init__(self, features: Tensor) -> None:
        self.features = features

    def matmat(self, rows: Tensor) -> Tensor:
        return ops.matmul(self.features, rows)

    def rmatmat(self, rows: Tensor) -> Tensor:
        return ops.matmul(self.features.T, rows)


def _dense(part: Part, config: NetworkConfig) -> Tensor:
    features: Any = part.features.astype(config.dtype)
    return Tensor(features.toarray() if hasattr(features, "toarray") else np.array(features))
