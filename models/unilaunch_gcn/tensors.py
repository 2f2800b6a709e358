"""The interface of the GCN to a framework: tensors, a few functions, and derivatives."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import override

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_graph.arrays import Floats, HostFunction

#: Rows in, rows out, differentiable.
Operation = Callable[[Any], Any]
#: The parameters as tensors to the scores.
Forward = Callable[[Sequence[Any]], Any]


class Tensors(ABC):
    """A framework on the host. A backend of a third party that has the six abstract methods can train the GCN."""

    @abstractmethod
    def tensor(self, array: Floats) -> Any:
        """Return an array as a tensor; on the host both have the same memory."""

    @abstractmethod
    def array(self, tensor: Any) -> Floats:
        """Return a tensor as an array of the host."""

    @abstractmethod
    def mean(self, rows: Any) -> Any:
        """Return the mean of each row. (rows, 1)"""

    @abstractmethod
    def operation(self, operator: LinearOperator) -> Operation:
        """Return an operator on arrays of the host as a differentiable operation on tensors."""

    @abstractmethod
    def call(self, function: HostFunction, *inputs: Any) -> Any:
        """Return a function of tensors in the host's memory, differentiable by each of them."""

    @abstractmethod
    def gradients(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Any]) -> Sequence[Any]:
        """Return the derivatives of a scalar by each of the parameters.

        Args:
            forward: From the parameters as tensors to the scores.
            gradient_of: From the scores, without derivative, to the scalar's derivative by them.
            parameters: The parameters as arrays.
        """

    def scores(self, forward: Forward, parameters: Sequence[Any]) -> Any:
        """Return what *forward* makes of the parameters' arrays, without derivative."""
        return forward([self.tensor(parameter) for parameter in parameters])


class HostArrays(Tensors):
    """numpy: what inference needs of a framework."""

    @override
    def tensor(self, array: Floats) -> Floats:
        return array

    @override
    def array(self, tensor: Floats) -> Floats:
        return tensor

    @override
    def mean(self, rows: Floats) -> Floats:
        mean: Floats = rows.mean(axis=1, keepdims=True)
        return mean

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return operator.matmat

    @override
    def call(self, function: HostFunction, *inputs: Floats) -> Floats:
        return function.forward(inputs)

    @override
    def gradients(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError("numpy has no derivatives")
