"""Sums over the ranks for a training: losses, gradients, statistics."""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch_graph.network.functions import check_count
from unilaunch_graph.purpose import Purpose
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.ranks import HALVES, Ranks

#: What torch's loss functions save for backward where their result is a mean.
_MEAN = 1
#: What a mean stays a mean under, if it is multiplied by 1 or less: by a tensor, or (1) by a number.
_LINEAR = {"AddBackward0", "SubBackward0", "NegBackward0", "MulBackward0", "MulBackward1"}
#: The attribute of a gradient that is a sum over the ranks: how often it had been written to then.
_SUMMED = "_unilaunch_summed"
_logger = logging.getLogger("unilaunch_graph")


def mean(losses: torch.Tensor, count: int, part: GraphPart | None = None) -> torch.Tensor:
    """Return the sum of all ranks' *losses*, divided by *count*: the loss of the whole graph, on every rank.

    All ranks must call this. Each rank's backward gives its own nodes' share of the gradient; `sum_gradients` adds
    the shares. Terms that do not come from nodes (a penalty on the weights) must not be added to the result, since
    `sum_gradients` would count them once per rank: use the optimizer's `weight_decay`. A mean that rows are compared
    with (in a correlation, a variance) needs `sum_ranks`: here its gradient would be wrong.

    Args:
        losses: Of this rank's nodes that have one, or their sum: `reduction="none"` or `"sum"` gives that. Bool and
            integers are allowed, for a share of nodes; 16-bit ones are added in float32. Any shape
        count: Number of nodes on all ranks: `part.num_train`.
        part: This rank's part; None for the one that the script has loaded.

    Raises:
        InputError: *count* is not positive: the graph has no such node.
        SpecError: *losses* is a mean of a loss function of torch, which this would divide a second time.
    """
    check_count(count)
    ranks = Ranks.of(part)
    is_scalar = losses.dim() == 0 and count != ranks.size  # else it is of statistics, which each rank has
    if not torch.compiler.is_compiling() and is_scalar and _is_mean(losses.grad_fn):
        raise SpecError(
            "ug.torch.mean: the loss is a mean over this rank's nodes already: expected their sum: give the loss "
            "function reduction='sum'"
        )
    if losses.requires_grad and not ranks.has_loss:  # a compiled mean changes the state once
        ranks.has_loss = True
    own = losses.as_subclass(torch.Tensor)
    own = own.float() if own.dtype in HALVES else own
    total: torch.Tensor = _Total.apply(own.sum(), ranks)  # type: ignore[no-untyped-call]
    return (total / count).to(losses.dtype) if losses.is_floating_point() else total / count


def _is_mean(node: Any) -> bool:
    """Return whether a number, by what torch keeps for its backward, is a mean, or a mean and something else added."""
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        name = type(node).__name__
        if name == "MeanBackward0" or getattr(node, "_saved_reduction", None) == _MEAN:
            return True
        if name in _LINEAR and node not in seen and not _is_enlarged(node):
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return False


def _is_enlarged(node: Any) -> bool:
    """Return whether a number is multiplied by more than 1: a mean times the number of its rows is their sum.

    So is one whose factor cannot be read: a backward has freed it, or a device, which this would wait for, has it.
    """
    try:
        factors = [getattr(node, factor, None) for factor in ("_saved_self", "_saved_other")]
    except RuntimeError:
        return True
    known = [factor for factor in factors if factor is not None]
    return any((isinstance(factor, torch.Tensor) and not factor.is_cpu) or abs(factor) > 1 for factor in known)


def sum_ranks(value: torch.Tensor, part: GraphPart | None = None) -> torch.Tensor:
    """Return the sum of all ranks' *value*, for a statistic that each rank's rows are compared with.

    All ranks must call this. The mean of a column of *x* is `sum_ranks(x.sum(0), part) / part.num_nodes`. Backward adds
    the gradients of all ranks. Differentiable. For a loss take `mean`: its gradient counts once, not once per rank. For
    a loss that is made of such statistics alone (a variance) take `mean(loss, part.world_size)`.

    Args:
        value: This rank's; of the same shape on every rank. Bools are counted, as int64.
        part: This rank's part; None for the one that the script has loaded.
    """
    return global_sum(value.long() if value.dtype == torch.bool else value, Ranks.of(part))


def global_sum(value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Return the sum of *value* over all ranks, for statistics that every rank's rows depend on.

    All ranks must call this. The backward is the sum of all ranks' gradients: exact where each rank's loss depends on
    the sum. Differentiable.
    """
    total: torch.Tensor = _GlobalSum.apply(value, ranks)  # type: ignore[no-untyped-call]
    return total


def sum_gradients(model: torch.nn.Module | Iterable[torch.nn.Parameter], part: GraphPart | None = None) -> None:
    """Replace the gradient of each parameter by its sum over all ranks, in one all-reduce per dtype.

    All ranks must call this, once before each `optimizer.step()`: with gradient accumulation after the last backward.
    A parameter that has a gradient on some ranks only (a rank without edges) counts as zero on the others. One that
    has a gradient on no rank keeps None. One whose gradient is this function's result (two models share it) keeps that.

    Args:
        model: The model, or its parameters: the same ones in the same order on every rank.
        part: This rank's part; None for the one that the script has loaded.

    Raises:
        TypeError: A gradient is sparse.
    """
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else model
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    ranks = Ranks.of(part)
    if ranks.size == 1:
        return
    if not ranks.has_loss:
        ranks.has_loss = True  # one line is enough
        if ranks.rank == 0:
            _logger.warning(
                "ug.torch.sum_gradients: no loss came from ug.torch.mean: gradients of a mean over a rank's nodes do "
                "not add up to those of the whole graph: ug.torch.mean(losses, part.num_train)"
            )
    for dtype in dict.fromkeys(parameter.dtype for parameter in trained):
        _sum_gradients([parameter for parameter in trained if parameter.dtype == dtype], ranks)


def _sum_gradients(parameters: list[torch.nn.Parameter], ranks: Ranks) -> None:
    is_new = [parameter.grad is not None and not _is_summed(parameter.grad, ranks) for parameter in parameters]
    present = parameters[0].new_ones(len(parameters))
    for place, one in enumerate(is_new):
        if not one:
            present[place] = 0
    pieces = [present, *map(_flat_gradient, parameters, is_new)]
    counts, *summed = torch.split(
        ranks.all_reduce(torch.cat(pieces), Purpose.SUM_GRADIENTS), [len(piece) for piece in pieces]
    )
    for parameter, one, num_present, total in zip(parameters, is_new, counts, summed, strict=True):
        if parameter.grad is not None and one:
            parameter.grad.copy_(total.view_as(parameter))
        elif num_present:  # the host waits for a GPU here, and only here
            parameter.grad = total.view_as(parameter).clone()
        if parameter.grad is not None:
            setattr(parameter.grad, _SUMMED, parameter.grad._version)  # noqa: SLF001  (torch has no other name for it)


def _is_summed(gradient: torch.Tensor, ranks: Ranks) -> bool:
    """Return whether a gradient is the sum over the ranks, and nothing was added to it since.

    If something was, which torch counts as one write, the sum will be counted once for each rank: one line says so.
    """
    summed, written = getattr(gradient, _SUMMED, None), gradient._version  # noqa: SLF001
    if summed is not None and written == summed + 1 and not ranks.has_added and gradient.any():
        ranks.has_added = True
        if ranks.rank == 0:
            _logger.warning(
                "ug.torch.sum_gradients: gradients were added to their sum over the ranks, which is summed again: "
                "expected one sum_gradients, after the last backward, and optimizer.zero_grad() after each step"
            )
    return summed == written


def _flat_gradient(parameter: torch.nn.Parameter, is_new: bool) -> torch.Tensor:  # noqa: FBT001
    if parameter.grad is None or not is_new:
        return torch.zeros_like(parameter).flatten()
    if parameter.grad.is_sparse:
        raise TypeError("sum_gradients: a gradient is sparse: expected dense ones, such as of Embedding(sparse=False)")
    return parameter.grad.detach().flatten()


class _Total(torch.autograd.Function):
    """A sum over ranks in which each rank's own value has its own gradient."""

    @staticmethod
    @override
    def forward(ctx: Any, value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        return ranks.all_reduce(value.clone(), Purpose.MEAN)

    @staticmethod
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _GlobalSum(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        ctx.ranks = ranks
        return ranks.all_reduce(value.clone(), Purpose.SUM_RANKS)

    @staticmethod
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        total: torch.Tensor = _GlobalSum.apply(grad, ctx.ranks)  # type: ignore[no-untyped-call]
        return total, None
