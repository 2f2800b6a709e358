"""PyTorch's implementation of `Tensors`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from typing_extensions import override

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.tensors import Forward, Operation, Tensors
from unilaunch_graph.arrays import Floats, HostFunction
from unilaunch_torch.linear import OnHost, apply, call


class _KnownGradient(torch.autograd.Function):
    """A scalar of which the gradient by the logits is known.

    Where `torch.autograd.grad` is given a gradient, torch imports sympy, which takes each rank 0.6 s.
    """

    @staticmethod
    @override
    def forward(ctx: Any, logits: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return logits.new_zeros(())

    @staticmethod
    @override
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


class TorchTensors(Tensors):
    """torch on the host."""

    @override
    def tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array)

    @override
    def array(self, tensor: torch.Tensor) -> Floats:
        numbers: Floats = tensor.detach().cpu().numpy()
        return numbers

    @override
    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.mean(dim=1, keepdim=True)

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return partial(apply, OnHost(operator))

    @override
    def call(self, function: HostFunction, *inputs: torch.Tensor) -> torch.Tensor:
        return call(function, *inputs)

    @override
    def gradients(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Any]) -> Sequence[torch.Tensor]:
        tensors = [self.tensor(parameter).detach().requires_grad_() for parameter in parameters]
        scores = forward(tensors)
        known = _KnownGradient.apply(scores, gradient_of(scores.detach()))  # type: ignore[no-untyped-call]
        return torch.autograd.grad(known, tensors)

    @override
    def scores(self, forward: Forward, parameters: Sequence[Any]) -> torch.Tensor:
        with torch.no_grad():
            scores: torch.Tensor = super().scores(forward, parameters)
        return scores
