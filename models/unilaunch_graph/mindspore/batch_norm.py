"""Batch normalisation over the rows of all ranks."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from unilaunch_graph.mindspore.part import PADDING, GraphPart, only_pynative
from unilaunch_graph.mindspore.reductions import sum_ranks
from unilaunch_mindspore.linear import HALVES, widened


class BatchNorm(nn.Cell):  # type: ignore[misc]
    """Normalise each column with the statistics of all nodes: Ioffe and Szegedy (ICML 2015), algorithm 1.

    Parameters, buffers and defaults are those of PyTorch's `BatchNorm1d` and of `ug.torch.BatchNorm`. All ranks must
    call it.

    Args:
        num_features: Columns of the rows.
        part: This rank's part.
        eps: Added to the variance.
        momentum: Weight of this step's statistics in the running ones.
        dtype: Type of the parameters.
    """

    def __init__(
        self, num_features: int, part: GraphPart, eps: float = 1e-5, momentum: float = 0.1,
        dtype: ms.dtype.Type = ms.float32,
    ) -> None:  # fmt: skip
        super().__init__()
        self.part, self.eps, self.momentum = part, eps, momentum
        ones, zeros = np.ones(num_features), np.zeros(num_features)
        self.weight, self.bias = Parameter(Tensor(ones, dtype)), Parameter(Tensor(zeros, dtype))
        self.running_mean = Parameter(Tensor(zeros, dtype), requires_grad=False)
        self.running_var = Parameter(Tensor(ones, dtype), requires_grad=False)

    def construct(self, x: Tensor) -> Tensor:
        """Return the normalised rows: with all nodes' statistics in training, else with the running ones.

        Args:
            x: One row for each owned node, or for each of some nodes or edges. (rows, num_features)

        Raises:
            ValueError: x has another shape, or in training all ranks together have one row or none.
        """
        if x.ndim != 2 or x.shape[1] != len(self.weight):  # noqa: PLR2004
            raise ValueError(f"BatchNorm: x has the shape {tuple(x.shape)}: expected (rows, {len(self.weight)})")
        if x.dtype in HALVES:  # their sums overflow
            return self._normalized(widened(x)).astype(x.dtype)
        return self._normalized(x)

    def _normalized(self, x: Tensor) -> Tensor:
        """Return the normalised rows.

        MindSpore's amp would expand a call of `construct` itself without end, and finds no function of this file, but
        imported ones, for a second network.
        """
        mean, variance = self._statistics(x) if self.training else (self.running_mean, self.running_var)
        return (x - mean) / (variance + Tensor(self.eps, x.dtype)).sqrt() * self.weight + self.bias

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each column over all ranks' rows, and move the running ones towards them."""
        only_pynative()
        if not len(x):
            raise ValueError(f"BatchNorm: no row on rank {self.part.rank}, where MindSpore's sums are undefined")
        is_padded = len(x) == self.part.num_owned > self.part.arrays.num_owned
        total = np.array([float(len(x) - is_padded)])
        self.part.ranks.collectives.all_reduce(total)
        count = int(total[0])
        if count < 2:  # noqa: PLR2004
            raise ValueError(f"BatchNorm: {count} row on all ranks: expected more than one in training")
        real = Tensor(self.part.owned != PADDING).astype(x.dtype).reshape(-1, 1) if is_padded else None
        share = Tensor(1 / count, x.dtype)  # MindSpore rounds a number of Python's to float32 first
        mean = self._sum(x, real) * share
        variance = self._sum((x - mean) ** 2, real) * share
        for running, seen, factor in (
            (self.running_mean, mean, 1.0),
            (self.running_var, variance, count / (count - 1)),
        ):
            moved = (1 - self.momentum) * running.asnumpy() + self.momentum * factor * seen.asnumpy()
            running.copy_(Tensor(moved))  # in place, as Adam
        return mean, variance

    def _sum(self, rows: Tensor, real: Tensor | None) -> Tensor:
        """Return the sum of all ranks' rows, without those that *real* has a 0 for."""
        return sum_ranks((rows if real is None else rows * real).sum(0), self.part)
