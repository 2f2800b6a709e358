"""MindSpore's implementation of `Tensors`."""

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.tape import Recorded, Tape, call
from unilaunch_gcn.tensors import DeviceTensors, Forward, Operation, Tensors
from unilaunch_graph.arrays import Floats, HostFunction
from unilaunch_mindspore.linear import Apply
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


class _Network(nn.Cell):  # type: ignore[misc]
    """A network of host arrays as one function of its parameters, with its gradient.

    Only the parameters and their gradients are MindSpore's tensors: each tensor that passes from one cell to another is
    copied to MindSpore's memory and back, which took a seventh of an epoch.
    """

    def __init__(self, forward: Forward, gradient_of: Operation) -> None:
        super().__init__()
        self.forward, self.gradient_of = forward, gradient_of

    def construct(self, *parameters: Tensor) -> Tensor:
        self.record = Tape()
        self.wanted = [Recorded(parameter.asnumpy(), self.record) for parameter in parameters]
        self.logits = self.forward(self.wanted)
        self.gradient = self.gradient_of(self.logits)
        return Tensor(0.0, parameters[0].dtype)

    def bprop(self, *_: Tensor) -> tuple[Tensor, ...]:
        found = self.record.gradients(self.logits, self.gradient.array, self.wanted)
        del self.record, self.logits, self.gradient, self.wanted  # an evaluation needs their memory
        return tuple(Tensor.from_numpy(np.ascontiguousarray(gradient)) for gradient in found)


class MindSporeTensors(Tensors):
    """MindSpore on the host: it differentiates by the parameters, the steps between are numpy's."""

    @override
    def tensor(self, array: Any) -> Recorded:
        return Recorded(array)

    @override
    def array(self, tensor: Any) -> Floats:
        numbers: Floats = tensor.array if isinstance(tensor, Recorded) else tensor.asnumpy()
        return numbers

    @override
    def mean(self, rows: Recorded) -> Recorded:
        return rows.mean()

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return lambda rows: rows.apply(operator)

    @override
    def call(self, function: HostFunction, *inputs: Recorded) -> Recorded:
        return call(function, *inputs)

    @override
    def differentiate(
        self, forward: Forward, gradient_of: Operation, num_parameters: int
    ) -> Callable[[Sequence[Any]], Sequence[Tensor]]:
        return _gradients(_Network(forward, gradient_of), num_parameters, Tensor.from_numpy)


def _gradients(
    scalar: Callable[..., Tensor], num_parameters: int, tensor: Operation
) -> Callable[[Sequence[Any]], Sequence[Tensor]]:
    """Return the function from the parameters' arrays to the derivatives of a scalar by each of them."""
    function = ms.grad(scalar, tuple(range(num_parameters)))

    def gradients(parameters: Sequence[Any]) -> Sequence[Tensor]:
        found = function(*map(tensor, parameters))
        return found if isinstance(found, tuple) else (found,)

    return gradients


class MindSporeDeviceTensors(DeviceTensors):
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
    def array(self, tensor: Any) -> Floats:
        numbers: Floats = tensor if isinstance(tensor, np.ndarray) else tensor.asnumpy()
        return numbers

    @override
    def mean(self, rows: Tensor) -> Tensor:
        return rows.sum(axis=1, keepdims=True) / rows.shape[1]  # no rows have no mean in MindSpore's derivative

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        apply: Operation = Apply(operator)
        return apply

    @override
    def call(self, function: HostFunction, *inputs: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(function).__name__} is a function of host arrays")

    @override
    def differentiate(
        self, forward: Forward, gradient_of: Operation, num_parameters: int
    ) -> Callable[[Sequence[Any]], Sequence[Tensor]]:
        known = _KnownGradient(gradient_of)
        return _gradients(lambda *parameters: known(forward(parameters)), num_parameters, self.tensor)

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
