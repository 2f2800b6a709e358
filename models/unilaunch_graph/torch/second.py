"""Gradients that have no derivative themselves: one who asks for it is told, in place of a wrong number.

torch's own `once_differentiable` tells only `backward()`. `torch.autograd.grad(..., inputs)` visits only what leads to
*inputs*, and that error leads nowhere: the second derivative would silently lack this term.
"""

from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import override


def refuse_second(
    gradients: Sequence[torch.Tensor | None], inputs: Sequence[torch.Tensor | None], name: str
) -> list[torch.Tensor | None]:
    """Return *gradients* such that their derivative by any of *inputs* raises RuntimeError.

    Args:
        gradients: What a backward has computed outside of autograd.
        inputs: All tensors that they depend on.
        name: What the user called, for the message.
    """
    if not torch.is_grad_enabled():
        return [*gradients]
    return [None if each is None else _Refuse.apply(name, each, *inputs) for each in gradients]  # type: ignore[no-untyped-call]


class _Refuse(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, name: str, gradient: torch.Tensor, *inputs: torch.Tensor | None) -> torch.Tensor:
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        raise RuntimeError(f"{ctx.name} has no second derivative: use the layer of PyG through ug.torch.distribute")
