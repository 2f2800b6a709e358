"""Batch normalisation over the nodes of all parts."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from unilaunch_graph.mindspore.part import GraphPart


class BatchNorm(nn.Cell):  # type: ignore[misc]
    """Normalise each column over all nodes of the graph: Ioffe and Szegedy (ICML 2015), algorithm 1.

    Mean and variance are those of the whole graph, on any number of parts; parameters, buffers and defaults are those of
    PyTorch's `BatchNorm1d`.

    Args:
        num_features: Columns of the rows.
        eps: Added to the variance.
        momentum: Weight of this step's statistics in the running ones.
        dtype: Type of the parameters.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, dtype: ms.dtype.Type = ms.float32
    ) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        ones, zeros = (Tensor(np.full(num_features, value), dtype) for value in (1, 0))
        self.weight, self.bias = Parameter(ones, name="weight"), Parameter(zeros, name="bias")
        self.running_mean = Parameter(zeros.copy(), name="running_mean", requires_grad=False)
        self.running_var = Parameter(ones.copy(), name="running_var", requires_grad=False)

    def construct(self, x: Tensor, part: GraphPart) -> Tensor:
        """Return the normalised rows: with the graph's statistics in training, else with the running ones.

        Args:
            x: (num_owned, num_features)
            part: This rank's part. In training all ranks must call this.
        """
        mean, var = self.statistics(x, part) if self.training else (self.running_mean, self.running_var)
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias

    def statistics(self, x: Tensor, part: GraphPart) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each column over all nodes, and move the running ones towards them."""
        count = part.num_nodes
        mean = part.over_ranks(part.real_rows(x).sum(0)) / count
        var = part.over_ranks(part.real_rows((x - mean) ** 2).sum(0)) / count
        unbiased = var * (count / max(count - 1, 1))
        for running, found in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.set_data(Tensor((1 - self.momentum) * running.asnumpy() + self.momentum * found.asnumpy()))
        return mean, var
