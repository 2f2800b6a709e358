"""Derivatives of steps on host arrays: each step is recorded, and the record is read backwards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_graph.arrays import Floats, HostFunction

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

    def apply(self, operator: LinearOperator) -> "Recorded":
        """Return operator @ rows."""
        return self.step(operator.matmat(self.array), [self], lambda gradient: [operator.rmatmat(gradient)])

    def mean(self) -> "Recorded":
        """Return the mean of each row. (rows, 1)"""
        shape = self.array.shape
        mean: Floats = self.array.mean(axis=1, keepdims=True)
        return self.step(mean, [self], lambda gradient: [np.broadcast_to(gradient / shape[1], shape)])

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


def call(function: HostFunction, *inputs: Recorded) -> Recorded:
    """Return a function of arrays that knows its derivative; the object is for this call alone."""
    arrays = [each.array for each in inputs]
    out = function.forward(arrays)
    return inputs[0].step(out, inputs, lambda gradient: function.backward(arrays, out, gradient))


def _summed(gradient: Floats, shape: tuple[int, ...]) -> Floats:
    """Return the gradient of an array that numpy has repeated to the gradient's shape."""
    if gradient.shape == shape:
        return gradient
    ahead = gradient.ndim - len(shape)
    axes = tuple(axis for axis in range(gradient.ndim) if axis < ahead or shape[axis - ahead] == 1)
    sums: Floats = gradient.sum(axis=axes, dtype=np.float64).astype(gradient.dtype)
    return sums.reshape(shape)
