"""The halo exchange as a differentiable function of tensors."""

from typing import Any

import torch
from typing_extensions import override

from unilaunch_graph.network.checks import check_rows
from unilaunch_graph.torch.part import GraphPart


def halo(rows: torch.Tensor, part: GraphPart) -> torch.Tensor:
    """Return the rows of the owned nodes, followed by the rows of the halo nodes. All ranks must call this.

    Differentiable: backward sends the gradients of the halo rows to their owners, which add them in the order of the
    ranks, so that every run gives the same bits. That is `sum_halo`, so second derivatives are exact too.

    Args:
        rows: One row for each owned node; any dtype. (num_owned, ...)
        part: This rank's part.

    Returns:
        A tensor of its own. Of `part.x`, which is sent once, each call returns the same one; on one rank it is *rows*
        itself. (num_owned + num_halo, ...)

    Raises:
        ValueError: *rows* does not have num_owned rows.
    """
    check_rows(rows, part.num_owned, "num_owned")
    if part.world_size == 1:
        return rows
    if rows is part.x and not rows.requires_grad:
        return part.keep("x", (rows,), lambda: (_fetch(rows, part),))[0]
    with_halo: torch.Tensor = _Halo.apply(rows, part)  # type: ignore[no-untyped-call]
    return with_halo


def sum_halo(rows: torch.Tensor, part: GraphPart) -> torch.Tensor:
    """Return the rows of the owned nodes, with other ranks' rows of the same nodes added. All ranks must call this.

    The transpose of `halo`: each rank sends the rows of its halo nodes to their owners. Differentiable.

    Args:
        rows: One row for each owned node and each halo node. (num_owned + num_halo, ...)
        part: This rank's part.

    Returns:
        A new tensor. (num_owned, ...)

    Raises:
        ValueError: *rows* does not have num_owned + num_halo rows.
    """
    check_rows(rows, part.num_owned + part.num_halo, "num_owned + num_halo")
    summed: torch.Tensor = _SumHalo.apply(rows, part)  # type: ignore[no-untyped-call]
    return summed


class _Halo(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, rows: torch.Tensor, part: GraphPart) -> torch.Tensor:
        ctx.part = part
        return _fetch(rows.detach(), part)

    @staticmethod
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return sum_halo(grad, ctx.part), None


class _SumHalo(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, rows: torch.Tensor, part: GraphPart) -> torch.Tensor:
        ctx.part = part
        return _send_home(rows.detach(), part)

    @staticmethod
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return halo(grad, ctx.part), None


def _fetch(rows: torch.Tensor, part: GraphPart) -> torch.Tensor:
    """Return owned and halo rows in new memory: autograd's saved tensors are never overwritten."""
    plan, num_owned = part.plan, part.num_owned
    sent = rows.index_select(0, plan.every)
    whole = rows.new_empty((num_owned + part.num_halo, *rows.shape[1:]))
    exchange = part.ranks.exchange(sent, plan.send_counts, whole[num_owned:], plan.receive_counts)
    whole[:num_owned] = rows
    exchange.wait()
    return whole


def _send_home(rows: torch.Tensor, part: GraphPart) -> torch.Tensor:
    """Return the owned rows plus the halo rows of other ranks for these nodes."""
    plan, num_owned = part.plan, part.num_owned
    halo_rows = rows[num_owned:].contiguous()
    arrived = rows.new_empty((len(plan.every), *rows.shape[1:]))
    exchange = part.ranks.exchange(halo_rows, plan.receive_counts, arrived, plan.send_counts)
    total = rows[:num_owned].clone(memory_format=torch.contiguous_format)
    exchange.wait()
    for chosen, addends in zip(plan.rows, torch.split(arrived, plan.send_counts), strict=True):
        # No row stands twice in *chosen*: a plain write after a read, which is the same in every run, on CUDA too.
        total[chosen] = total[chosen] + addends
    return total
