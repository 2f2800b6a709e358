"""Between the ranks: the loss, statistics and gradients."""

from collections.abc import Sequence
from math import prod
from typing import Any, TypeVar, cast

import mindspore as ms
import numpy as np
from mindspore import Tensor

from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.arrays import Floats
from unilaunch_graph.mindspore.part import GraphPart, only_pynative
from unilaunch_graph.mindspore.ranks import Collective, Ranks, RankSum
from unilaunch_graph.network.functions import NUMBERS, check_count, numbers_of, refuse_different_numbers
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.purpose import Purpose
from unilaunch_mindspore.linear import widened

Gradients = TypeVar("Gradients", Tensor, Sequence[Tensor])


def mean(losses: Tensor, count: int, part: GraphPart | None = None) -> Tensor:
    """Return the sum of all ranks' *losses*, divided by *count*: the loss of the whole graph, on every rank.

    All ranks must call this, once for each loss. Each rank's gradient is its own nodes' share; `sum_gradients` adds the
    shares. Terms that do not come from nodes (a penalty on the weights) must not be added to the result, since
    `sum_gradients` would count them once per rank: use the optimizer's `weight_decay`. A mean that rows are
    compared with (in a correlation, a variance) needs `sum_ranks`: here its gradient would be wrong.

    Args:
        losses: One for each of this rank's nodes that have one; there may be none: `reduction="none"` gives that. Bool
            and integers are allowed, for a share of nodes; 16-bit ones are added in float32. (rows,) or (rows, columns)
        count: Number of nodes on all ranks: `part.num_train`; times the columns for a mean over these too.
        part: This rank's part; None for the one that the script has loaded.

    Raises:
        InputError: *count* is not positive: the graph has no such node.
        SpecError: *count* differs between the ranks.
        ValueError: *losses* is a sum (MindSpore's own sum over no rows is garbage), or *part* is needed to tell which
            of two graphs of the script the losses are of.
    """
    only_pynative()
    check_count(count)
    if losses.ndim == 0:
        raise ValueError("mean: expected one loss for each node, as reduction='none' gives them, and not their sum")
    ranks = Ranks.of(part)
    operator = _Mean(ranks.collectives, count, len(losses) - _is_padded(losses, count, part, ranks))
    return ranks.apply(Collective(operator, ranks), widened(losses))


def _is_padded(losses: Tensor, count: int, part: GraphPart | None, ranks: Ranks) -> bool:
    """Return whether the last loss is of a row that was added to a part without edges."""
    columns = max(1, prod(losses.shape[1:]))
    rows = {(count, len(losses)), (count / columns, len(losses))}
    if part is None and rows & ranks.padded and rows & ranks.whole:
        raise ValueError("mean: the losses may be of two graphs of this script: give the part as third argument")
    has_padding = part is None or part.num_owned > part.arrays.num_owned
    return has_padding and bool(rows & ranks.padded)


class _Mean:
    """A mean over ranks, whose transpose gives each rank's own losses their own gradient.

    It is computed by numpy: MindSpore rounds a number of Python's to float32 first.
    """

    def __init__(self, collectives: Collectives, count: int, num_real: int) -> None:
        self.collectives, self.count, self.num_real = collectives, count, num_real

    def matmat(self, losses: Floats) -> Floats:
        self.shape = losses.shape
        dtype = losses.dtype if losses.dtype.kind == "f" else np.float64
        numbers = [0.0] * NUMBERS if SIMULATED.get() else numbers_of(self.count)
        sums = np.array([losses[: self.num_real].sum(), *numbers], np.float64)
        self.collectives.calls.purpose = Purpose.MEAN
        self.collectives.all_reduce(sums)
        refuse_different_numbers("ug.mindspore", self.count, sums[1:].tolist())
        result: Floats = (sums[:1] / self.count).astype(dtype).reshape(())
        return result

    def rmatmat(self, gradient: Floats) -> Floats:
        shares = np.zeros(self.shape, gradient.dtype)
        shares[: self.num_real] = gradient / self.count
        return shares


def sum_ranks(value: Tensor, part: GraphPart | None = None) -> Tensor:
    """Return the sum of all ranks' *value*, for a statistic that each rank's rows are compared with.

    All ranks must call this. Backward adds the gradients of all ranks. Differentiable once. For a loss take `mean`: its
    gradient counts once, not once per rank.

    Args:
        value: This rank's; of the same shape on every rank, and not a sum over no rows. Bools are counted, as int32.
        part: This rank's part; None for the one that the script has loaded.
    """
    only_pynative()
    ranks = Ranks.of(part)
    return ranks.apply(Collective(RankSum(ranks.collectives), ranks), value)


def sum_gradients(gradients: Gradients, part: GraphPart | None = None) -> Gradients:
    """Return the gradients, each summed over all ranks: the same bits on every rank.

    All ranks must call this, once before each step of the optimizer: with gradient accumulation on the sums.

    Args:
        gradients: As `mindspore.grad` and `mindspore.value_and_grad` return them: a tensor, or a tuple of tensors; the
            same shapes on every rank.
        part: This rank's part; None for the one that the script has loaded.

    Returns:
        The sums, in the same form and types; those of 16 bits are added in float32.

    Raises:
        TypeError: *gradients* holds tuples.
    """
    if isinstance(gradients, Tensor):
        return cast("Gradients", sum_gradients((gradients,), part)[0])
    if not all(isinstance(gradient, Tensor) for gradient in gradients):
        raise TypeError("sum_gradients: expected tensors: of two tuples the gradients of the weights, the second one")
    job_ranks = Ranks.of(part)
    types = _agreed_types(gradients, job_ranks)
    summed = list(gradients)
    for wide in (ms.float32, ms.float64):
        places = [place for place, kind in enumerate(types) if (kind == ms.float64) == (wide == ms.float64)]
        if places:
            flat = np.concatenate([gradients[place].astype(wide).asnumpy().ravel() for place in places])
            job_ranks.collectives.calls.purpose = Purpose.SUM_GRADIENTS
            job_ranks.collectives.all_reduce(flat)
            pieces = np.split(flat, np.cumsum([gradients[place].size for place in places]))
            for place, piece in zip(places, pieces, strict=False):  # the last piece is empty
                summed[place] = Tensor(piece.reshape(gradients[place].shape)).astype(types[place])
    return cast("Gradients", tuple(summed))


def _agreed_types(gradients: Sequence[Tensor], ranks: Ranks) -> list[Any]:
    """Return each gradient's type. All ranks must call this.

    A rank whose loss does not reach a parameter may have zeros in float32, whatever the type of the parameter is.
    """
    others = (ms.float64, ms.float16, ms.bfloat16)
    num_ranks = np.array([[float(gradient.dtype == kind) for kind in others] for gradient in gradients])
    ranks.collectives.calls.purpose = Purpose.SUM_GRADIENTS
    ranks.collectives.all_reduce(num_ranks)
    return [next((kind for kind, num in zip(others, row, strict=True) if num), ms.float32) for row in num_ranks]
