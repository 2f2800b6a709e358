"""Reverse-mode automatic differentiation of the few operations that the GCN uses."""

from collections.abc import Callable
from typing import Any, Protocol, Union

import numpy as np
import scipy.sparse  # noqa: F401  (imported here so that the ranks of a host share the import)
from numpy.typing import NDArray

Array = NDArray[Any]
#: From the gradient of a result to the gradient of one of its inputs.
Pullback = Callable[[Array], Array]
Operand = Union["Variable", Array, float]


class Operator(Protocol):
    """A linear operator with its transpose."""

    def matmat(self, rows: Any) -> Any:
        """Return operator @ rows."""

    def rmatmat(self, rows: Any) -> Any:
        """Return operator.T @ rows."""


class Variable:
    """An array together with the inputs that it was computed from.

    Args:
        array: The value.
        inputs: Each input that is a variable, with the function from the gradient of this result to its gradient.
    """

    __array_ufunc__ = None  # numpy leaves `array * variable` to this class

    def __init__(self, array: Array, *inputs: tuple[Operand, Pullback]) -> None:
        self.array = array
        self.inputs = [(operand, pull) for operand, pull in inputs if isinstance(operand, Variable)]

    def __add__(self, other: Operand) -> "Variable":
        return Variable(self.array + _value(other), (self, lambda g: g), (other, lambda g: g))

    def __sub__(self, other: Operand) -> "Variable":
        return Variable(self.array - _value(other), (self, lambda g: g), (other, lambda g: -g))

    def __mul__(self, other: Operand) -> "Variable":
        left, right = self.array, _value(other)
        return Variable(left * right, (self, lambda g: g * right), (other, lambda g: g * left))

    def __truediv__(self, other: Operand) -> "Variable":
        left, right = self.array, _value(other)
        return Variable(left / right, (self, lambda g: g / right), (other, lambda g: -g * left / (right * right)))

    def __pow__(self, exponent: float) -> "Variable":
        base = self.array
        return Variable(base**exponent, (self, lambda g: g * exponent * base ** (exponent - 1)))


def _value(operand: Operand) -> Any:
    return operand.array if isinstance(operand, Variable) else operand


def row_mean(rows: Variable) -> Variable:
    """Return the mean of each row, as a column. (rows, 1)"""
    shape = rows.array.shape
    mean = rows.array.mean(axis=1, keepdims=True)
    return Variable(mean, (rows, lambda g: np.broadcast_to(g / shape[1], shape)))


def apply(operator: Operator, rows: Variable) -> Variable:
    """Return operator @ rows; the gradient is operator.T @ gradient."""
    return Variable(operator.matmat(rows.array), (rows, operator.rmatmat))


def call(function: Any, *inputs: Variable) -> Variable:
    """Return a function of arrays that knows its derivative."""
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


def gradients(result: Variable, gradient: Array, wanted: list[Variable]) -> list[Array]:
    """Return the gradient of each of *wanted*, given the gradient of *result*."""
    known: dict[Variable, Array] = {result: gradient}
    for variable in reversed(_in_order(result)):
        for operand, pull in variable.inputs:
            pulled = _sum_to_shape(pull(known[variable]), operand.array.shape)
            known[operand] = known[operand] + pulled if operand in known else pulled
    return [known[variable] for variable in wanted]


def _in_order(result: Variable) -> list[Variable]:
    """Return *result* and all it depends on, each behind its inputs; the same order on every rank."""
    ordered: dict[Variable, None] = {}

    def visit(variable: Variable) -> None:
        if variable not in ordered:
            for operand, _ in variable.inputs:
                visit(operand)
            ordered[variable] = None

    visit(result)
    return list(ordered)


def _sum_to_shape(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Undo a broadcast: sum over the axes along which an input was repeated."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and gradient.shape[axis] != 1)
    return gradient.sum(axis=repeated, keepdims=True) if repeated else gradient
