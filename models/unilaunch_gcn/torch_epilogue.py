"""Sums of rows with their epilogue as one differentiable function of torch, and the epilogue in torch's operations.

`apply` and `gradient` are what `unilaunch_gcn.triton_kernels` calls so: they stand in where Triton is not.
"""

from typing import Any, NamedTuple, Protocol

import torch
from typing_extensions import override

from unilaunch_gcn.epilogue import Dropout, Epilogue
from unilaunch_graph.operators.torch_masks import column_keys, kept, row_keys


class Passes(Protocol):
    """An epilogue by itself, and its derivative."""

    def apply(self, epilogue: Epilogue, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return *out* after the epilogue of *rows* was written into it. Both (rows, width)."""

    def gradient(self, epilogue: Epilogue, after: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
        """Return the gradient by what an epilogue was given, from the gradient by what it returned."""


class FinishedAggregation(Protocol):
    """A_hat @ rows, with an epilogue."""

    def finished(self, rows: torch.Tensor, epilogue: Epilogue, out: torch.Tensor) -> torch.Tensor:
        """Return *out* after epilogue(A_hat @ rows) was written into it."""

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return A_hat.T @ rows."""


def mask_of_rows(dropout: Dropout, width: int, kind: torch.dtype) -> torch.Tensor:
    """Return 0 where an element is dropped, and 1 / (1 - probability) where it is kept. (rows, width)"""
    rows, columns = hash_places(dropout, width)
    return kept(rows[:, None] ^ columns, dropout.probability, kind)


def hash_places(dropout: Dropout, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `dropout.row_keys` and `dropout.column_keys`."""
    columns = torch.arange(width, device=dropout.nodes.device)
    return row_keys(dropout.nodes, dropout.keys), column_keys(columns, dropout.keys)


def apply(epilogue: Epilogue, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return *out* after the epilogue of *rows* was written into it. Both (rows, width)."""
    for added in (epilogue.plus, epilogue.bias):
        rows = rows if added is None else rows + added
    if epilogue.relu:
        rows = torch.relu(rows)
    if epilogue.dropout:
        rows = rows * mask_of_rows(epilogue.dropout, rows.shape[1], rows.dtype)
    return out.copy_(rows)


def gradient(epilogue: Epilogue, after: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
    """Return the gradient by what an epilogue was given, from the gradient by what it returned.

    Args:
        epilogue: The epilogue.
        after: What it returned; needed if it has a ReLU. (rows, width)
        rows: The gradient. (rows, width)
    """
    if epilogue.relu and after is not None:  # positive only where neither ReLU nor dropout made it 0
        scale = epilogue.dropout.scale if epilogue.dropout else 1.0
        return torch.where(after > 0, rows * scale, 0)
    if epilogue.dropout:
        return rows * mask_of_rows(epilogue.dropout, rows.shape[1], rows.dtype)
    return rows


class Sums(NamedTuple):
    """How sums become the rows of a layer.

    Attributes:
        passes: The epilogue by itself: `triton_kernels`, or this module.
        aggregation: A_hat, which the rows are multiplied by first; None: they are the sums.
        epilogue: Without *plus* and *bias*, which are differentiated.
        kind: Type of the result.
    """

    passes: Passes
    aggregation: FinishedAggregation | None
    epilogue: Epilogue
    kind: torch.dtype


class _Finished(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, sums: Sums, rows: torch.Tensor, plus: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        epilogue, rows = sums.epilogue._replace(plus=plus, bias=bias), rows.contiguous()
        out = torch.empty_like(rows, dtype=sums.kind)
        if sums.aggregation:
            out = sums.aggregation.finished(rows, epilogue, out)
        else:
            out = sums.passes.apply(epilogue, rows, out)
        ctx.sums, ctx.kinds = sums, (rows.dtype, plus is not None and plus.dtype, bias is not None and bias.dtype)
        ctx.save_for_backward(*((out,) if sums.epilogue.relu else ()))
        return out

    @staticmethod
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        sums, (rows, plus, bias) = ctx.sums, ctx.kinds
        before = sums.passes.gradient(sums.epilogue, *(ctx.saved_tensors or (None,)), grad.contiguous())
        by_bias = before.sum(0, dtype=bias) if bias else None
        by_plus = before.to(plus) if plus else None
        before = before.to(rows)
        return None, sums.aggregation.rmatmat(before) if sums.aggregation else before, by_plus, by_bias


def finish(
    sums: Sums, rows: torch.Tensor, plus: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return epilogue(A_hat @ rows + plus + bias), differentiable once by *rows*, *plus* and *bias*.

    Only the result is kept for the derivative, and only where there is a ReLU.

    Args:
        sums: How.
        rows: (num_owned, width)
        plus: (num_owned, width)
        bias: (width,)
    """
    out: torch.Tensor = _Finished.apply(sums, rows, plus, bias)  # type: ignore[no-untyped-call]
    return out
