"""MindSpore's implementation of `Tensors`."""

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch_gcn.tensors import DeviceTensors, Forward, Operation, Tensors
from unilaunch_graph.arrays import Floats, HostFunction
from unilaunch_graph.operators.aggregation import LinearOperator
from unilaunch_mindspore.linear import Apply, Call, OnHost
from unilaunch_mindspore.sparse import SparseMatrix


class _KnownGradient(nn.Cell):  # type: ignore[misc]
    """A scalar of which the gradient by the logits is known."""

    def __init__(self, gradient_of: Operation) -> None:
        super().__init__()
        self.gradient_of = gradient_of

    def construct(self, logits: Tensor) -> Tensor:
        self.gradient = self.gradient_of(logits)
        return Tensor(0.0, logits.dtype)

    def bprop(self, logits: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor]:  # noqa: ARG002  (MindSpore's signature)
        return (self.gradient,)


class MindSporeTensors(Tensors):
    """MindSpore on the host."""

    @override
    def tensor(self, array: Any) -> Tensor:
        return Tensor.from_numpy(array)

    @override
    def array(self, tensor: Any) -> Floats:
        numbers: Floats = tensor if isinstance(tensor, np.ndarray) else tensor.asnumpy()
        return numbers

    @override
    def mean(self, rows: Tensor) -> Tensor:
        return rows.sum(axis=1, keepdims=True) / rows.shape[1]  # no rows have no mean in MindSpore's derivative

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        apply: Operation = Apply(OnHost(operator))
        return apply

    @override
    def call(self, function: HostFunction, *inputs: Tensor) -> Tensor:
        return Call(function)(*inputs)

    @override
    def differentiate(
        self, forward: Forward, gradient_of: Operation, num_parameters: int
    ) -> Callable[[Sequence[Any]], Sequence[Tensor]]:
        known = _KnownGradient(gradient_of)
        function = ms.grad(lambda *parameters: known(forward(parameters)), tuple(range(num_parameters)))

        def gradients(parameters: Sequence[Any]) -> Sequence[Tensor]:
            found = function(*map(self.tensor, parameters))
            return found if isinstance(found, tuple) else (found,)

        return gradients


class MindSporeDeviceTensors(MindSporeTensors, DeviceTensors):
    """MindSpore on a device (Ascend); the few weights are kept on the host."""

    framework = "mindspore"
    numeric = ms.numpy
    summed = np.dtype(np.float32)  # HCCL has no float64

    @override
    def tensor(self, array: Any) -> Tensor:
        return array if isinstance(array, Tensor) else Tensor(np.array(array))

    @override
    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        if not self.is_bfloat16:
            return ops.mm(rows, weight)
        return ops.mm(rows.astype(ms.bfloat16), weight.astype(ms.bfloat16)).astype(ms.float32)

    @override
    def relu(self, rows: Tensor) -> Tensor:
        return ops.relu(rows)

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        apply: Operation = Apply(operator)
        return apply

    @override
    def concatenate(self, arrays: list[Tensor], axis: int) -> Tensor:
        return ops.cat(arrays, axis)

    @override
    def empty(self, shape: tuple[int, int], like: Tensor) -> Tensor:
        return Tensor(np.empty(shape, ms.dtype_to_nptype(like.dtype)))

    @override
    def take(self, rows: Tensor, places: Tensor) -> Tensor:
        return ops.gather(rows, places, 0)

    @override
    def sparse(
        self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]
    ) -> SparseMatrix:
        return SparseMatrix(indptr, indices, values, shape)

    @override
    def buffer(self, weights: Floats) -> Floats:
        return weights

    @override
    def message(self, value: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        head = (value.reshape(1), ops.zeros_like(value.reshape(1)))
        return ops.concat((*head, *(gradient.reshape(-1) for gradient in gradients)))

    @override
    def local(self, message: Tensor) -> Floats:
        return np.array(message.asnumpy())
