"""Operators and functions of host arrays as differentiable MindSpore cells."""

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn
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
        self.once = FirstDerivative()

    def construct(self, rows: Tensor) -> Tensor:
        """Return operator @ rows."""
        return self.operator.matmat(rows)

    def bprop(self, rows: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor]:  # noqa: ARG002  (MindSpore's signature)
        """Return operator.T @ grad."""
        return (self.once(grad, self.operator.rmatmat(grad)),)


class Call(nn.Cell):  # type: ignore[misc]
    """A function of host arrays that knows its derivative, as a differentiable cell for one call.

    Args:
        function: Has forward(inputs) and backward(inputs, out, gradient) on lists of arrays.
    """

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.once = FirstDerivative()

    def construct(self, *inputs: Tensor) -> Tensor:
        """Return the result."""
        return Tensor.from_numpy(self.function.forward([tensor.asnumpy() for tensor in inputs]))

    def bprop(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the inputs."""
        *inputs, out, grad = (tensor.asnumpy() for tensor in arguments)
        found = self.function.backward(inputs, out, grad)
        return tuple(self.once(arguments[-1], Tensor.from_numpy(gradient)) for gradient in found)


class FirstDerivative(nn.Cell):  # type: ignore[misc]
    """Marks a gradient that has no gradient of its own: MindSpore would compute its derivative as 0."""

    def construct(self, grad: Tensor, result: Tensor) -> Tensor:  # noqa: ARG002  (what the result was made from)
        """Return the result, computed from *grad* where MindSpore does not record operations."""
        return result

    def bprop(self, grad: Tensor, result: Tensor, out: Tensor, second: Tensor) -> None:
        """Refuse a second derivative.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("unilaunch's operators have no second derivative in MindSpore")
