"""The MNIST network in MindSpore; only this module of the package imports MindSpore."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from typing_extensions import override

from unilaunch_mnist.arrays import Floats, Labels
from unilaunch_mnist.network import Network, views


class MindSporeNetwork(Network):
    """The network on cpu or on a device; its weights always stay in host memory.

    Args:
        weights: Initial weights. (7850,)
        on_host: Whether it runs on cpu.
    """

    def __init__(self, weights: Floats, *, on_host: bool) -> None:
        self.flat, self.on_host = weights, on_host
        # The mean over the batch; nn.CrossEntropyLoss gives the same number and takes ten times as long on cpu.
        self.cross_entropy = ops.SparseSoftmaxCrossEntropyWithLogits()
        self.loss_and_gradients = ms.value_and_grad(self._loss, (0, 1))

    @override
    def gradient(self, images: Floats, labels: Labels) -> Any:
        inputs = Tensor(images), Tensor(labels.astype(np.int32))
        loss, (matrix, bias) = self.loss_and_gradients(*self._tensors(), *inputs)
        fused = ops.concat((loss.reshape(1), matrix.reshape(-1), bias))
        return fused.asnumpy() if self.on_host else fused

    @override
    def local(self, summed: Any) -> Floats:
        local: Floats = summed if self.on_host else summed.asnumpy()
        return local

    @override
    def count_right(self, images: Floats, labels: Labels) -> int:
        logits = _logits(*self._tensors(), Tensor(images)).asnumpy()
        return int((logits.argmax(axis=1) == labels).sum())

    def _tensors(self) -> tuple[Tensor, Tensor]:
        matrix, bias = views(self.flat)
        return Tensor(matrix), Tensor(bias)

    def _loss(self, matrix: Tensor, bias: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        return self.cross_entropy(_logits(matrix, bias, images), labels)


def _logits(matrix: Tensor, bias: Tensor, images: Tensor) -> Tensor:
    return ops.relu(ops.mm(images, matrix) + bias)  # mm: the backward of matmul takes twice as long
