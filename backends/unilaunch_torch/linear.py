"""A linear operator as a differentiable torch function."""

from typing import Any, Protocol

import torch
from typing_extensions import override


class Operator(Protocol):
    """Rows in, rows out, with its exact transpose."""

    def matmat(self, rows: Any) -> Any:
        """Return operator @ rows."""

    def rmatmat(self, rows: Any) -> Any:
        """Return operator.T @ rows."""


class OnHost:
    """An operator on host arrays, as one on tensors in the host's memory; nothing is copied."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return operator @ rows."""
        return torch.from_numpy(self.operator.matmat(rows.numpy()))

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return operator.T @ rows."""
        return torch.from_numpy(self.operator.rmatmat(rows.numpy()))


class _Apply(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, operator: Operator, rows: torch.Tensor) -> torch.Tensor:
        ctx.operator = operator
        product: torch.Tensor = operator.matmat(rows.detach())
        return product

    @staticmethod
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, apply(_Transposed(ctx.operator), grad)  # so that the gradient has a derivative too


class _Transposed:
    def __init__(self, operator: Operator) -> None:
        self.matmat, self.rmatmat = operator.rmatmat, operator.matmat


def apply(operator: Operator, rows: torch.Tensor) -> torch.Tensor:
    """Return operator @ rows; its gradient is operator.T @ gradient, which is differentiable itself.

    Args:
        operator: Takes and returns tensors; of host arrays, wrapped in `OnHost`.
        rows: (columns of the operator, width)
    """
    product: torch.Tensor = _Apply.apply(operator, rows)  # type: ignore[no-untyped-call]
    return product
