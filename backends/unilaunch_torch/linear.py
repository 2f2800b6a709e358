"""Operators and functions of host arrays as differentiable torch functions."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from typing_extensions import override

from unilaunch.interfaces.linear import LinearOperator, OnTensors, Transposed


class OnHost(OnTensors):
    """Wrap an operator on host arrays as one on tensors in host memory, without a copy."""

    @override
    def convert(self, function: Callable[[Any], Any], rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(function(rows.numpy()))


class _Apply(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, operator: LinearOperator, rows: torch.Tensor) -> torch.Tensor:
        ctx.operator = operator
        product: torch.Tensor = operator.matmat(rows.detach())
        return product

    @staticmethod
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, apply(Transposed(ctx.operator), grad)  # so that the gradient has a derivative too


def apply(operator: LinearOperator, rows: torch.Tensor) -> torch.Tensor:
    """Return operator @ rows; its gradient is operator.T @ gradient, which is differentiable itself.

    Args:
        operator: Takes and returns tensors; an operator on host arrays is wrapped in `OnHost`.
        rows: (columns of the operator, width)
    """
    product: torch.Tensor = _Apply.apply(operator, rows)  # type: ignore[no-untyped-call]
    return product


class _Call(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, function: Any, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.function = function
        out = torch.from_numpy(function.forward(_arrays(inputs)))
        ctx.save_for_backward(out, *inputs)
        return out

    @staticmethod
    @override
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # torch's once_differentiable does not notice autograd.grad(..., inputs), which then lacks this term.
        if torch.is_grad_enabled():
            advice = getattr(ctx.function, "instead", "leave create_graph=True out")
            raise RuntimeError(f"{type(ctx.function).__name__} has no second derivative: {advice}")
        out, *inputs = ctx.saved_tensors
        return None, *map(torch.from_numpy, ctx.function.backward(_arrays(inputs), out.numpy(), gradient.numpy()))


def _arrays(tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [tensor.detach().numpy() for tensor in tensors]


def call(function: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """Return a function of host arrays that knows its derivative, applied to tensors; differentiable once.

    Args:
        function: Has forward(inputs) and backward(inputs, out, gradient) on lists of arrays; for this call alone. Where
            it has *instead*, that says what to do if a second derivative is needed.
        inputs: Tensors in the host's memory.
    """
    result: torch.Tensor = _Call.apply(function, *inputs)  # type: ignore[no-untyped-call]
    return result
