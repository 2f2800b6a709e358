"""MindSpore's implementation of `Tensors`: it sees the weights only, and the tape differentiates what is between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.device import DeviceTensors, Dropout, Epilogue
from unilaunch_gcn.tensors import Forward, Operation, Tensors
from unilaunch_graph.arrays import Floats, FloatType, HostFunction
from unilaunch_graph.dropout import entry_mask, fill_mask
from unilaunch_mindspore.linear import Apply
from unilaunch_mindspore.sparse import SparseMatrix

#: From the gradient of a step's result to the gradients of its inputs.
Backward = Callable[[Floats], Sequence[Floats]]


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """What a record knows of an array: its shape. The numbers are kept by the steps whose derivatives need them."""

    shape: tuple[int, ...]


class Tape:
    """The steps of one computation, in order."""

    def __init__(self) -> None:
        self.steps: list[tuple[Variable, Sequence[Variable], Backward]] = []

    def gradients(self, result: "Recorded", gradient: Floats, wanted: Sequence["Recorded"]) -> list[Floats]:
        """Return the gradient of each wanted array from that of the result; a step's arrays are freed after it.

        Args:
            result: The last array.
            gradient: Its gradient.
            wanted: Arrays that steps were computed from.
        """
        gradients = {result.variable: gradient}
        del gradient
        while self.steps:
            out, inputs, backward = self.steps.pop()
            if out in gradients:
                for variable, part in zip(inputs, backward(gradients.pop(out)), strict=True):
                    summed = _summed(part, variable.shape)
                    gradients[variable] = gradients[variable] + summed if variable in gradients else summed
                    del part, summed  # else they would stay in memory while the next step works
            del backward
        return [gradients[array.variable] for array in wanted]


class Recorded:
    """An array whose steps are recorded.

    Args:
        array: The array.
        tape: The record; None: without derivative.
    """

    def __init__(self, array: Floats, tape: Tape | None = None) -> None:
        self.array, self.tape, self.variable = array, tape, Variable(array.shape)

    def step(self, array: Floats, inputs: Sequence["Recorded"], backward: Backward) -> "Recorded":
        """Return the result of a step from this array and others."""
        out = Recorded(array, self.tape)
        if self.tape:
            self.tape.steps.append((out.variable, [array.variable for array in inputs], backward))
        return out

    def __add__(self, other: "Recorded") -> "Recorded":
        return self.step(self.array + other.array, [self, other], lambda gradient: [gradient, gradient])

    def __sub__(self, other: "Recorded") -> "Recorded":
        return self.step(self.array - other.array, [self, other], lambda gradient: [gradient, -gradient])

    def __mul__(self, other: "Recorded") -> "Recorded":
        one, two = self.array, other.array
        return self.step(one * two, [self, other], lambda gradient: [gradient * two, gradient * one])

    def __truediv__(self, other: "Recorded") -> "Recorded":
        below, out = other.array, self.array / other.array
        return self.step(out, [self, other], lambda gradient: [gradient / below, -gradient * out / below])

    def __pow__(self, power: float) -> "Recorded":
        base = self.array
        return self.step(base**power, [self], lambda gradient: [gradient * power * base ** (power - 1)])


def _summed(gradient: Floats, shape: tuple[int, ...]) -> Floats:
    """Return the gradient of an array that numpy has repeated to the gradient's shape."""
    if gradient.shape == shape:
        return gradient
    ahead = gradient.ndim - len(shape)
    axes = tuple(axis for axis in range(gradient.ndim) if axis < ahead or shape[axis - ahead] == 1)
    sums: Floats = gradient.sum(axis=axes, dtype=np.float64).astype(gradient.dtype)
    return sums.reshape(shape)


class _KnownGradient(nn.Cell):  # type: ignore[misc]
    """A scalar of which the gradient by the scores is known."""

    def construct(self, scores: Tensor) -> Tensor:
        self.gradient = self.gradient_of(scores)
        return Tensor(0.0, scores.dtype)

    def bprop(self, scores: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor]:  # noqa: ARG002  (MindSpore's signature)
        return (self.gradient,)


class _Network(nn.Cell):  # type: ignore[misc]
    """A network of host arrays as one function of its parameters, with its gradient.

    Only the parameters and their gradients are MindSpore's tensors: each tensor that passes from one cell to another is
    copied to MindSpore's memory and back, which took a seventh of an epoch.
    """

    def construct(self, *parameters: Tensor) -> Tensor:
        self.record = Tape()
        self.wanted = [Recorded(parameter.asnumpy(), self.record) for parameter in parameters]
        self.scores = self.forward(self.wanted)
        self.gradient = self.gradient_of(self.scores)
        return Tensor(0.0, parameters[0].dtype)

    def bprop(self, *_: Tensor) -> tuple[Tensor, ...]:
        found = self.record.gradients(self.scores, self.gradient.array, self.wanted)
        del self.record, self.scores, self.gradient, self.wanted  # an evaluation needs their memory
        return tuple(Tensor.from_numpy(np.ascontiguousarray(gradient)) for gradient in found)


class _Derivative:
    """MindSpore's derivative of a scalar by its parameters; it is made once, for any forward pass.

    Args:
        cell: What computes the scalar with the *forward* and *gradient_of* that it is given before each call.
        scalar: The scalar, from the parameters.
    """

    def __init__(self, cell: nn.Cell, scalar: Callable[..., Tensor]) -> None:
        self.cell, self.scalar = cell, scalar
        self.functions: dict[int, Callable[..., Any]] = {}

    def __call__(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the derivatives by each of the parameters."""
        count = len(parameters)
        if count not in self.functions:
            self.functions[count] = ms.grad(self.scalar, tuple(range(count)))
        self.cell.forward, self.cell.gradient_of = forward, gradient_of
        try:
            found = self.functions[count](*parameters)
        finally:
            del self.cell.forward, self.cell.gradient_of  # they hold the rows of the pass
        return found if isinstance(found, tuple) else (found,)


class MindSporeTensors(Tensors):
    """MindSpore on the host: it differentiates by the parameters, the steps between are numpy's."""

    def __init__(self) -> None:
        network = _Network()
        self.derivative = _Derivative(network, network)

    @override
    def tensor(self, array: Any) -> Recorded:
        return Recorded(array)

    @override
    def array(self, tensor: Any) -> Floats:
        numbers: Floats = tensor.array if isinstance(tensor, Recorded) else tensor.asnumpy()
        return numbers

    @override
    def mean(self, rows: Recorded) -> Recorded:
        shape = rows.array.shape
        mean: Floats = rows.array.mean(axis=1, keepdims=True)
        return rows.step(mean, [rows], lambda gradient: [np.broadcast_to(gradient / shape[1], shape)])

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return lambda rows: rows.step(
            operator.matmat(rows.array), [rows], lambda gradient: [operator.rmatmat(gradient)]
        )

    @override
    def call(self, function: HostFunction, *inputs: Recorded) -> Recorded:
        arrays = [each.array for each in inputs]
        out = function.forward(arrays)
        return inputs[0].step(out, inputs, lambda gradient: function.backward(arrays, out, gradient))

    @override
    def gradients(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Any]) -> Sequence[Tensor]:
        return self.derivative(forward, gradient_of, [Tensor.from_numpy(parameter) for parameter in parameters])


class MindSporeDeviceTensors(DeviceTensors):
    """MindSpore on a device (Ascend); the few weights are kept on the host."""

    numeric = ms.numpy
    summed = np.dtype(np.float32)  # HCCL has no float64

    def __init__(self, *, is_bfloat16: bool = False) -> None:
        super().__init__(is_bfloat16=is_bfloat16)
        known = _KnownGradient()
        self.derivative = _Derivative(known, lambda *parameters: known(known.forward(parameters)))
        #: The masks of one epoch, by their keys: they are made on the host, and backward asks for that of X again.
        self.made: dict[tuple[int, int], Tensor] = {}

    @override
    def tensor(self, array: Any) -> Tensor:
        return array if isinstance(array, Tensor) else Tensor(np.array(array))

    @override
    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        if not self.is_bfloat16:
            return ops.mm(rows, weight)
        return ops.mm(rows.astype(ms.bfloat16), weight.astype(ms.bfloat16)).astype(ms.float32)

    @override
    def finish(self, rows: Tensor, epilogue: Epilogue, aggregation: Any = None, *, is_wide: bool = False) -> Tensor:
        if aggregation:
            rows = Apply(aggregation)(rows)
        for added in (epilogue.plus, epilogue.bias):
            rows = rows if added is None else rows + added
        if epilogue.relu:
            rows = ops.relu(rows)
        return rows * self._mask(epilogue.dropout, rows) if epilogue.dropout else rows

    def _mask(self, dropout: Dropout, rows: Tensor) -> Tensor:
        if dropout.keys not in self.made:
            mask = np.empty(rows.shape, ms.dtype_to_nptype(rows.dtype))
            fill_mask(mask, dropout.nodes, dropout.keys, dropout.probability)
            self.made[dropout.keys] = Tensor(mask)
        return self.made[dropout.keys]

    @override
    def entry_mask(
        self, rows: NDArray[Any], columns: NDArray[Any], width: int, dtype: FloatType
    ) -> Callable[[Dropout], Tensor]:
        return lambda dropout: Tensor(
            entry_mask(dropout.nodes[rows], columns, dropout.keys, dropout.probability, dtype)
        )

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
    def gradients(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Any]) -> Sequence[Tensor]:
        try:
            return self.derivative(forward, gradient_of, [self.tensor(parameter) for parameter in parameters])
        finally:
            self.made.clear()

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
