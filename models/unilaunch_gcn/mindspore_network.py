"""The GCN in MindSpore: the one module here that imports it."""

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.backend import Collectives
from unilaunch_gcn.arrays import Floats, FloatType
from unilaunch_gcn.dropout import fill_mask, stream_keys
from unilaunch_gcn.layers import Layer
from unilaunch_gcn.loss import CrossEntropy
from unilaunch_gcn.meter import Meter
from unilaunch_gcn.network import Network, Problem, count_right, initial_weights, views
from unilaunch_gcn.normalization import edge_values, row_scale
from unilaunch_gcn.partition import Part
from unilaunch_gcn.setting import Setting
from unilaunch_mindspore.linear import Apply, OnHost
from unilaunch_mindspore.sparse import SparseMatrix

Mask = Callable[[int], Tensor]


class MindSporeNetwork(Network):
    """The GCN on the host: MindSpore's autograd over the operators that both frameworks share."""

    def __init__(self, problem: Problem) -> None:
        setting = problem.setting
        self.problem, self.layers = problem, setting.layers
        self.flat: Floats = initial_weights(setting.layers, setting.seed).astype(setting.dtype)
        self.aggregate = Apply(OnHost(problem.aggregate))
        self.loss = _Loss(CrossEntropy(problem.part))
        self.gradients = ms.grad(self._loss, tuple(range(len(setting.layers))))
        self.epoch: int | None = None

    @override
    def gradient(self, epoch: int) -> NDArray[np.float64]:
        self.epoch = epoch
        gradients = self.gradients(*self._tensors())
        if not self.problem.part.num_owned:
            return np.zeros(1 + len(self.flat))  # MindSpore's product over no rows is whatever the memory held
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        arrays = (gradient.asnumpy().ravel() for gradient in gradients)
        return np.concatenate([[self.loss.value], *arrays], dtype=np.float64)

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
        inputs = Apply(OnHost(problem.inputs.operator(epoch)))
        dropping = epoch is not None and problem.setting.dropout
        mask = _host_mask(problem, epoch) if epoch is not None and dropping else None
        return forward(self.layers, weights, inputs, self.aggregate, mask)


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


def forward(
    layers: Sequence[Layer], weights: Sequence[Tensor], inputs: Apply, aggregate: Apply, mask: Mask | None
) -> Tensor:
    """Return the logits of the owned nodes. (num_owned, num_classes)

    Args:
        layers: The layers.
        weights: Each layer's. (width_in, width_out)
        inputs: The features, as an operator on the first weights.
        aggregate: A_hat.
        mask: Returns the dropout mask of the rows that enter a layer; None for evaluation.
    """
    rows = inputs(weights[0])
    if layers[0].order == "product first":
        rows = aggregate(rows)
    for depth, (layer, weight) in enumerate(zip(layers[1:], weights[1:], strict=True), start=1):
        rows = ops.relu(rows)
        if mask:
            rows = rows * mask(depth)
        product_first = layer.order == "product first"  # mm: the backward of matmul takes twice as long
        rows = aggregate(ops.mm(rows, weight)) if product_first else ops.mm(aggregate(rows), weight)
    return rows


def _host_mask(problem: Problem, epoch: int) -> Mask:
    return lambda depth: Tensor.from_numpy(problem.mask(epoch, depth))


class MindSporeDeviceNetwork(Network):
    """The GCN on a device (Ascend): features, halo and activations stay in its memory; the few weights are the host's.

    Args:
        setting: What is trained.
        part: This rank's part.
        collectives: The ranks' collectives on tensors of the device.
        meter: Counts bytes and waiting.
    """

    def __init__(self, setting: Setting, part: Part, collectives: Collectives, meter: Meter) -> None:
        self.setting, self.layers, self.part = setting, setting.layers, part
        self.flat: Floats = initial_weights(setting.layers, setting.seed).astype(setting.dtype)
        self.labels = Tensor(np.maximum(part.labels, 0).astype(np.int32))
        self.share = Tensor(part.loss_share().astype(setting.dtype))
        self.aggregation = DeviceAggregation(part, collectives, meter, setting.dtype)
        self.aggregate = Apply(self.aggregation)
        self.features = _dense(part, setting)
        if self.layers[0].order == "aggregated once":
            self.features = self.aggregation.matmat(self.features)
        self.loss_and_gradients = ms.value_and_grad(self._loss, tuple(range(len(setting.layers))))
        self.epoch: int | None = None

    @override
    def gradient(self, epoch: int) -> Tensor:
        self.epoch = epoch
        loss, gradients = self.loss_and_gradients(*self._tensors())
        if not self.part.num_owned:
            return Tensor(np.zeros_like(self.flat, shape=1 + len(self.flat)))  # as in MindSporeNetwork
        return ops.concat((loss.reshape(1), *(gradient.reshape(-1) for gradient in gradients)))

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
        mask = self._mask(epoch) if epoch is not None and self.setting.dropout else None
        features = self.features * mask(0) if mask else self.features
        if self.layers[0].order == "aggregation first":
            features = self.aggregation.matmat(features)
        return forward(self.layers, weights, Apply(_DenseFeatures(features)), self.aggregate, mask)

    def _mask(self, epoch: int) -> Mask:
        def mask(depth: int) -> Tensor:
            out = np.empty((self.part.num_owned, self.layers[depth].width_in), self.setting.dtype)
            keys = stream_keys(self.setting.seed, epoch, depth)
            fill_mask(out, self.part.owned, keys, self.setting.dropout)
            return Tensor(out)

        return mask


class DeviceAggregation:
    """A_hat on a device; the same operator as `aggregation.Aggregation`, with the halo in the device's memory."""

    def __init__(self, part: Part, collectives: Collectives, meter: Meter, dtype: FloatType) -> None:
        self.collectives, self.meter, self.dtype = collectives, meter, dtype
        scale, halo_scale = row_scale(part.degrees), row_scale(part.halo_degrees)
        inside = edge_values(part.owned_indptr, part.owned_indices, scale, scale, dtype)
        outside = edge_values(part.halo_indptr, part.halo_indices, scale, halo_scale, dtype)
        self.owned = SparseMatrix(part.owned_indptr, part.owned_indices, inside, part.num_owned)
        self.remote = SparseMatrix(part.halo_indptr, part.halo_indices, outside, part.num_owned)
        self.diagonal = Tensor((scale * scale).astype(dtype)[:, None])
        self.send_rows = Tensor(np.array(part.send_rows))
        self.send_counts, self.receive_counts = part.send_counts.tolist(), part.halo_counts.tolist()

    def matmat(self, rows: Tensor) -> Tensor:
        """Return the owned rows of A_hat @ H; all ranks must call it. (num_owned, width)"""
        product = self.owned.matmat(rows) + self.diagonal * rows
        if len(self.send_counts) == 1:
            return product
        received = Tensor(np.empty((sum(self.receive_counts), rows.shape[1]), self.dtype))
        sent = ops.gather(rows, self.send_rows, 0)
        exchange = self.collectives.exchange(sent, self.send_counts, received, self.receive_counts)
        self.meter.received(received.nbytes)
        with self.meter.communication():
            exchange.wait()
        return product + self.remote.matmat(received)

    rmatmat = matmat


class _DenseFeatures:
    def __init__(self, features: Tensor) -> None:
        self.features = features

    def matmat(self, rows: Tensor) -> Tensor:
        return ops.matmul(self.features, rows)

    def rmatmat(self, rows: Tensor) -> Tensor:
        return ops.matmul(self.features.T, rows)


def _dense(part: Part, setting: Setting) -> Tensor:
    features: Any = part.features.astype(setting.dtype)
    return Tensor(features.toarray() if hasattr(features, "toarray") else np.array(features))
