"""Batch normalisation over the rows of all ranks."""

from typing import Any, NamedTuple

import torch
from typing_extensions import override

from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.ranks import HALVES, Ranks
from unilaunch_graph.torch.reductions import global_sum


class BatchNorm(torch.nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` whose statistics are taken over all ranks' rows: the same as in one process.

    Forward, backward and the running statistics are exact; the keys of the state are the same. All ranks must call it.

    Args:
        num_features: Columns of the rows.
        part: This rank's part.
        **options: Those of `torch.nn.BatchNorm1d`.
    """

    def __init__(self, num_features: int, part: GraphPart, **options: Any) -> None:
        super().__init__(num_features, **options)
        self.part = part

    @override
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normalised rows. (rows, num_features) or (rows, num_features, length)"""
        return batch_norm(self, input, self.part.ranks)


def batch_norm(module: Any, rows: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Return *rows* as a `torch.nn.BatchNorm1d` normalises them, with the statistics of all ranks.

    Raises:
        ValueError: In training, all ranks together have one row or none.
    """
    if ranks.size == 1:
        return torch.nn.BatchNorm1d.forward(module, rows)
    momentum = module.momentum
    if module.training and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        momentum = 1 / module.num_batches_tracked.item() if momentum is None else momentum
    return normalise(module, rows, ranks, momentum)


def normalise(module: Any, rows: torch.Tensor, ranks: Ranks, momentum: float) -> torch.Tensor:
    """Return rows less their mean, divided by their standard deviation (Ioffe and Szegedy, ICML 2015, algorithm 1).

    Args:
        module: Has eps, weight, bias, running_mean and running_var.
        rows: (rows, num_features) or (rows, num_features, length)
        ranks: The other ranks.
        momentum: Share of this step in the running statistics.
    """
    if rows.dtype in HALVES:  # sums of 16-bit numbers overflow: torch adds them in float32 too
        return normalise(module, rows.float(), ranks, momentum).to(rows.dtype)
    shape = [-1 if axis == 1 else 1 for axis in range(rows.dim())]
    if module.training or module.running_mean is None:
        seen = Statistics.of(rows, ranks)
        if rows[:, :1].numel() <= 1 and seen.num_elements <= 1:  # with two rows here a GPU need not be asked
            raise ValueError(
                f"BatchNorm: {int(seen.num_elements)} row on all ranks: expected more than one in training"
            )
        if module.training and module.running_mean is not None:
            _track(module, seen, momentum)
        mean, variance = seen.mean, seen.variance
    else:
        mean, variance = module.running_mean, module.running_var
    normal = (rows - mean.view(shape)) * (variance + module.eps).rsqrt().view(shape)
    return scale_and_shift(module, normal, shape)


def scale_and_shift(module: Any, normal: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Return *normal* times the module's weight plus its bias, if it has them; *shape* is theirs among the rows'."""
    if module.weight is None:
        return normal
    scaled: torch.Tensor = normal * module.weight.view(shape) + module.bias.view(shape)
    return scaled


class Statistics(NamedTuple):
    """Mean and variance of each column over all ranks' rows, differentiable.

    Attributes:
        mean: (columns,)
        variance: With the number of elements as divisor. (columns,)
        num_elements: Elements of a column on all ranks. ()
    """

    mean: torch.Tensor
    variance: torch.Tensor
    num_elements: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor, ranks: Ranks) -> "Statistics":
        """Return those of *rows*; all ranks must call it. (rows, columns) or (rows, columns, length)"""
        others = [axis for axis in range(rows.dim()) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(rows.dim())]
        own = rows.new_full((1,), rows[:, :1].numel())
        sums = global_sum(torch.cat([rows.sum(others), own]), ranks)  # one message: each is a wait for the slowest rank
        count = sums[-1].detach()
        mean = sums[:-1] / count
        variance = global_sum((rows - mean.view(shape)).square().sum(others), ranks) / count
        return cls(mean, variance, count)


def count_elements(elements: torch.Tensor, ranks: Ranks) -> int:
    """Return the number of elements on all ranks; all ranks must call it."""
    return int(ranks.all_reduce(torch.tensor([elements.numel()], dtype=torch.int64, device=ranks.device)))


@torch.no_grad()
def _track(module: Any, seen: Statistics, momentum: float) -> None:
    unbiased = seen.variance * (seen.num_elements / (seen.num_elements - 1))
    module.running_mean.lerp_(seen.mean.to(module.running_mean.dtype), momentum)
    module.running_var.lerp_(unbiased.to(module.running_var.dtype), momentum)
