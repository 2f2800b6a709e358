"""Sums over the ranks for a training: losses, gradients, statistics."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch_graph.network.functions import NUMBERS, check_count, numbers_of, refuse_different_numbers
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.purpose import Purpose
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.ranks import HALVES, Ranks

#: What torch's loss functions save for backward where their result is a mean.
_MEAN = 1
#: What a mean stays a mean under, if it is multiplied by 1 or less: by a tensor, or (1) by a number.
_LINEAR = frozenset({"AddBackward0", "SubBackward0", "NegBackward0", "MulBackward0", "MulBackward1"})
#: What lies between the losses of nodes and their sum.
_SUMS = _LINEAR | {"SumBackward0", "DivBackward0", "IndexBackward0", "SliceBackward0", "ViewBackward0"}
#: In place of an infinite weight of a class: so it differs from finite ones, and not from itself.
_INFINITE = 1e9
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
        SpecError: *losses* is a mean of a loss function of torch, which this would divide a second time; or *count* or
            the loss function's weights of the classes differ between the ranks.
    """
    check_count(count)
    ranks = Ranks.of(part)
    is_eager = not torch.compiler.is_compiling()
    is_scalar = losses.dim() == 0 and count != ranks.size  # else it is of statistics, which each rank has
    if is_eager and is_scalar and _is_mean(losses.grad_fn):
        raise SpecError(
            "ug.torch.mean: the loss is a mean over this rank's nodes already: expected their sum: give the loss "
            "function reduction='sum'"
        )
    numbers = torch.zeros(NUMBERS, dtype=torch.float64, device=ranks.device)
    looks = is_eager and ranks.size > 1 and not SIMULATED.get() and not (ranks.has_loss and ranks.device.type != "cpu")
    if looks:  # the host would wait for a device: there the first loss alone is looked at
        numbers = torch.tensor(numbers_of(count, _class_weight(losses.grad_fn)), dtype=torch.float64).to(ranks.device)
    if losses.requires_grad and not ranks.has_loss:  # a compiled mean changes the state once
        ranks.has_loss = True
    own = losses.as_subclass(torch.Tensor)
    own = own.float() if own.dtype in HALVES else own
    total, numbers = _Total.apply(own.sum(), numbers, ranks)  # type: ignore[no-untyped-call]
    if looks:
        refuse_different_numbers("ug.torch", count, numbers.tolist())
    mean_of_all: torch.Tensor = total / count
    return mean_of_all.to(losses.dtype) if losses.is_floating_point() else mean_of_all


def _is_mean(node: Any) -> bool:
    """Return whether a number, by what torch keeps for its backward, is a mean, or a mean and something else added."""
    steps = _steps(node, _LINEAR, _is_enlarged)
    return any(
        type(step).__name__ == "MeanBackward0" or getattr(step, "_saved_reduction", None) == _MEAN for step in steps
    )


def _class_weight(node: Any) -> float | None:
    """Return one number that tells the weights of the classes in torch's loss functions; None: there are none."""
    for step in _steps(node, _SUMS):
        scores, weight, of_positive = (_saved(step, name) for name in ("self", "weight", "pos_weight"))
        of_classes = None if scores is None or scores.dim() == 1 else scores.shape[1:2]
        for weights in (weight, of_positive):
            if weights is not None and (
                weights.shape == of_classes or (weights is of_positive and weights.numel() == 1)
            ):
                flat = weights.detach().double().flatten()
                flat = flat.clamp(max=_INFINITE)  # 1 / 0 of a class that this rank has no node of
                return float(flat @ torch.arange(1.0, 1 + len(flat), dtype=flat.dtype, device=flat.device))
    return None


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """Return a tensor that torch keeps for backward, unless a hook has packed it or a backward has freed it."""
    try:
        tensor = getattr(getattr(node, f"_raw_saved_{name}", None), "data", None)
    except RuntimeError:
        return None
    return tensor if isinstance(tensor, torch.Tensor) else None


def _steps(node: Any, linear: frozenset[str], ends: Callable[[Any], bool] = lambda _: False) -> Iterator[Any]:
    """Yield the steps of torch's backward from *node* on, through those that are in *linear*, and not beyond an end."""
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if type(node).__name__ in linear and not ends(node):
            waiting += [before for before, _ in node.next_functions]


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
    new = [
        None if parameter.grad is None or _is_summed(parameter.grad, ranks) else parameter.grad
        for parameter in parameters
    ]
    present = parameters[0].new_ones(len(parameters))
    for place, gradient in enumerate(new):
        if gradient is None:
            present[place] = 0  # without a copy from the host, which would wait for a GPU
    pieces = [present, *map(_flat_gradient, parameters, new)]
    counts, *summed = torch.split(
        ranks.all_reduce(torch.cat(pieces), Purpose.SUM_GRADIENTS), [len(piece) for piece in pieces]
    )
    for parameter, gradient, num_present, total in zip(parameters, new, counts, summed, strict=True):
        if gradient is not None:
            gradient.copy_(total.view_as(parameter))
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


def _flat_gradient(parameter: torch.nn.Parameter, gradient: torch.Tensor | None) -> torch.Tensor:
    if gradient is None:
        return torch.zeros_like(parameter).flatten()
    if gradient.is_sparse:
        raise TypeError("sum_gradients: a gradient is sparse: expected dense ones, such as of Embedding(sparse=False)")
    return gradient.detach().flatten()


class _Total(torch.autograd.Function):
    """A sum over ranks in which each rank's own value has its own gradient, and the sums of other *numbers* with it."""

    @staticmethod
    @override
    def forward(
        ctx: Any, value: torch.Tensor, numbers: torch.Tensor, ranks: Ranks
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = value.to(torch.promote_types(value.dtype, numbers.dtype)).reshape(1)
        sums = ranks.all_reduce(torch.cat([wide, numbers]), Purpose.MEAN)
        total, others = sums[0].to(value.dtype), sums[1:].real
        ctx.mark_non_differentiable(others)
        return total, others

    @staticmethod
    @override
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[torch.Tensor, None, None]:
        return grad, None, None


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
