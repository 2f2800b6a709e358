"""The collectives of a network in MindSpore, which MindSpore differentiates in one order."""

import numpy as np
from mindspore import Tensor, nn

from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.linear import LinearOperator
from unilaunch_graph.arrays import Floats
from unilaunch_graph.comparison import NotCheckedError
from unilaunch_graph.network.ranks import OTHER_RANKS, SIMULATED, ScriptRanks
from unilaunch_graph.purpose import Purpose
from unilaunch_mindspore.linear import FirstDerivative, OnHost


class Ranks(ScriptRanks):
    """The ranks of a job.

    MindSpore skips the backward of operations that do not affect the loss, and a rank without training nodes may have a
    loss that depends on nothing: the other ranks would wait for its part in their exchanges. So each collective takes a
    number from the one before it, also a loss' `mean`: all ranks go back through all of them, in the same order.

    Args:
        rank: Index of this rank.
        size: Number of ranks.
        collectives: The ranks' collectives on host arrays.

    Attributes:
        last: The number from the last collective.
        padded: Of each part that has been padded: the nodes of its graph, and its rows with the one that was added.
        whole: Of each other part: the nodes of its graph, and its rows.
    """

    def __init__(self, rank: int, size: int, collectives: Collectives) -> None:
        super().__init__(rank, size, collectives)
        self.padded: set[tuple[int, int]] = set()
        self.whole: set[tuple[int, int]] = set()
        self.forget_order()

    def forget_order(self) -> None:
        """Start a new sequence of collectives."""
        self.last = Tensor(np.zeros(1, np.float32))

    def apply(self, collective: "Collective", rows: Tensor) -> Tensor:
        """Return operator @ rows, ordered after the last collective.

        Raises:
            NotCheckedError: A simulated rank has reached the job's.
        """
        if SIMULATED.get() not in {None, self}:
            raise NotCheckedError(OTHER_RANKS)
        out, self.last = collective(rows, self.last)
        return out


class Collective(nn.Cell):  # type: ignore[misc]
    """An operator on host arrays in which all ranks take part, as a differentiable cell.

    Args:
        operator: The operator.
        ranks: The ranks that take part.
    """

    def __init__(self, operator: LinearOperator, ranks: Ranks) -> None:
        super().__init__()
        self.operator, self.ranks = OnHost(operator), ranks
        self.transposed = FirstDerivative(self.operator.rmatmat)

    def construct(self, rows: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return operator @ rows, and the number that the next collective takes."""
        return self.operator.matmat(rows), last

    def bprop(self, rows: Tensor, last: Tensor, out: object, grads: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return operator.T @ gradient. The function that is differentiated has ended: the next one begins anew."""
        self.ranks.forget_order()
        return self.transposed(grads[0]), grads[1]


class RankSum:
    """The sum over all ranks, as an operator; its transpose is itself.

    Args:
        collectives: The ranks' collectives on host arrays.
    """

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives

    def matmat(self, numbers: Floats) -> Floats:
        """Return the sum of every rank's *numbers*, of the same shape."""
        summed: Floats = np.array(numbers, np.int32 if numbers.dtype == bool else None)  # MPI adds no bools
        self.collectives.calls.purpose = Purpose.SUM_RANKS
        self.collectives.all_reduce(summed)
        return summed

    rmatmat = matmat
