"""numpy as the GCN asks for a framework, with reverse-mode automatic differentiation of the few operations it uses."""

import os
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse  # noqa: F401  (imported here so that the ranks of a host share the import)
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.layers import NetworkConfig
from unilaunch_gcn.tensors import Forward, Operation, Tensors
from unilaunch_graph.arrays import HostFunction

Array = NDArray[Any]
#: From the gradient of a result to the gradient of one of its inputs.
Pullback = Callable[[Array], Array]
Operand: TypeAlias = "Variable | Array | float"
_NUMBERS = count()
#: Seconds for which each epoch sleeps. With it a training lasts long enough to be interrupted, without computing long.
PAUSE = float(os.environ.get("NUMPY_BACKEND_PAUSE", "0"))  # noqa: TID251


class Variable:
    """An array together with the inputs that it was computed from.

    Args:
        array: The value.
        inputs: Each input, with the function from the gradient of this result to its gradient.
    """

    __array_ufunc__ = None  # numpy leaves `array * variable` to this class

    def __init__(self, array: Array, *inputs: tuple[Operand, Pullback]) -> None:
        self.array, self.number = array, next(_NUMBERS)
        self.inputs = [(operand, pull) for operand, pull in inputs if isinstance(operand, Variable)]

    def __add__(self, other: Operand) -> "Variable":
        return Variable(self.array + _value(other), (self, lambda g: g), (other, lambda g: g))

    def __mul__(self, other: Operand) -> "Variable":
        left, right = self.array, _value(other)
        return Variable(left * right, (self, lambda g: g * right), (other, lambda g: g * left))

    def __pow__(self, exponent: float) -> "Variable":
        base = self.array
        return Variable(base**exponent, (self, lambda g: g * exponent * base ** (exponent - 1)))

    def __sub__(self, other: Operand) -> "Variable":
        return self + other * -1.0

    def __truediv__(self, other: Operand) -> "Variable":
        return self * other**-1.0


def _value(operand: Operand) -> Any:
    return operand.array if isinstance(operand, Variable) else operand


def gradients(result: Variable, gradient: Array, wanted: list[Variable]) -> list[Array]:
    """Return the gradient of each of *wanted*, given the gradient of *result*; the same order on every rank."""
    known, waiting = {result: gradient}, {result}
    while waiting:
        variable = max(waiting, key=lambda one: one.number)  # whatever was computed from it is done
        waiting.remove(variable)
        for operand, pull in variable.inputs:
            pulled = _sum_to_shape(pull(known[variable]), operand.array.shape)
            known[operand] = known[operand] + pulled if operand in known else pulled
            waiting.add(operand)
    return [known[variable] for variable in wanted]


def _sum_to_shape(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Undo a broadcast: sum over the axes along which an input was repeated."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and gradient.shape[axis] != 1)
    return np.asarray(gradient.sum(axis=repeated, keepdims=True)) if repeated else gradient


class NumpyTensors(Tensors):
    """numpy on the host, in float32 or float64."""

    def __init__(self, config: NetworkConfig) -> None:
        if config.is_bfloat16:
            raise SpecError("--backend numpy --precision bfloat16: expected float32 or float64")

    @override
    def tensor(self, array: Array) -> Variable:
        return Variable(array)

    @override
    def array(self, tensor: Any) -> Array:
        array: Array = tensor.array
        return array

    @override
    def mean(self, rows: Variable) -> Variable:
        shape, mean = rows.array.shape, rows.array.mean(axis=1, keepdims=True)
        return Variable(mean, (rows, lambda g: np.broadcast_to(g / shape[1], shape)))

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return lambda rows: Variable(operator.matmat(rows.array), (rows, operator.rmatmat))

    @override
    def call(self, function: HostFunction, *inputs: Variable) -> Variable:
        arrays = [variable.array for variable in inputs]
        out = function.forward(arrays)
        found: list[Array] = []

        def pull(place: int) -> Pullback:
            def gradient_of(g: Array) -> Array:
                if not found:
                    found.extend(function.backward(arrays, out, g))
                return found[place]

            return gradient_of

        return Variable(out, *((variable, pull(place)) for place, variable in enumerate(inputs)))

    @override
    def gradients(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Any]) -> Sequence[Variable]:
        wanted = [Variable(parameter) for parameter in parameters]
        scores = forward(wanted)
        time.sleep(PAUSE)
        return [Variable(array) for array in gradients(scores, gradient_of(scores).array, wanted)]
