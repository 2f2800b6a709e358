"""Operators and functions of host arrays as differentiable MindSpore cells."""

from collections.abc import Callable
from math import prod
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.linear import LinearOperator, OnTensors

#: Types of 16 bits.
HALVES = {ms.float16, ms.bfloat16}


class OnHost(OnTensors):
    """Wrap an operator on host arrays as one on tensors in host memory, without a copy but for 16-bit rows."""

    @override
    def convert(self, function: Callable[[Any], Any], rows: Tensor) -> Tensor:
        out = Tensor.from_numpy(function(widened(rows).asnumpy()))
        return out.astype(rows.dtype) if rows.dtype in HALVES else out


class Folded:
    """An operator on matrices as one on rows of any shape, (n, ...).

    It folds the arrays. Where the same rows are used twice, MindSpore's second derivative of a tensor's `reshape`
    leaves out all that passes through it (2.10).

    Args:
        operator: Takes and returns matrices. (n, width)
    """

    def __init__(self, operator: LinearOperator) -> None:
        self.operator = operator

    def matmat(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return operator @ rows."""
        return self._fold(self.operator.matmat, rows)

    def rmatmat(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return operator.T @ rows."""
        return self._fold(self.operator.rmatmat, rows)

    def _fold(self, function: Callable[[Any], NDArray[Any]], rows: NDArray[Any]) -> NDArray[Any]:
        found = function(as_matrix(rows))
        return found.reshape(len(found), *rows.shape[1:])


def as_matrix(rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows as a matrix on the same memory. (n, ...) -> (n, width)"""
    return rows.reshape(len(rows), prod(rows.shape[1:]))


def widened(rows: Tensor) -> Tensor:
    """Return 16-bit rows in float32: numpy and MPI have no bfloat16, and sums in float16 overflow."""
    return rows.astype(ms.float32) if rows.dtype in HALVES else rows


class Apply(nn.Cell):  # type: ignore[misc]
    """Return operator @ rows; its gradient is operator.T @ gradient.

    Args:
        operator: Takes and returns tensors; an operator on host arrays is wrapped in `OnHost`.
    """

    def __init__(self, operator: LinearOperator) -> None:
        super().__init__()
        self.operator = operator
        self.transposed = FirstDerivative(operator.rmatmat)

    def construct(self, rows: Tensor) -> Tensor:
        """Return operator @ rows."""
        return self.operator.matmat(rows)

    def bprop(self, rows: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor]:  # noqa: ARG002  (MindSpore's signature)
        """Return operator.T @ grad."""
        return (self.transposed(grad),)


class Call(nn.Cell):  # type: ignore[misc]
    """A function of host arrays that knows its derivative, as a differentiable cell for one call.

    Args:
        function: Has forward(inputs) and backward(inputs, out, gradient) on lists of arrays.
    """

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.derivative = FirstDerivative(self._backward)

    def construct(self, *inputs: Tensor) -> Tensor:
        """Return the result."""
        return Tensor.from_numpy(self.function.forward([tensor.asnumpy() for tensor in inputs]))

    def bprop(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the inputs."""
        found: tuple[Tensor, ...] = self.derivative(*arguments)
        return found

    def _backward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        *inputs, out, grad = (tensor.asnumpy() for tensor in arguments)
        return tuple(map(Tensor.from_numpy, self.function.backward(inputs, out, grad)))


class FirstDerivative(nn.Cell):  # type: ignore[misc]
    """A gradient that has no gradient of its own: MindSpore would compute its derivative as 0.

    Args:
        function: Computes the gradient, as tensors that are no arguments: of these, MindSpore would forget that they
            passed through this cell as soon as it adds another gradient to them (2.10).
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def construct(self, *arguments: Tensor) -> Any:
        """Return the gradient."""
        return self.function(*arguments)

    def bprop(self, *arguments: Any) -> None:
        """Refuse a second derivative.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("unilaunch's operators have no second derivative in MindSpore")
