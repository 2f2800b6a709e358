"""Between the ranks: halo rows, the loss, gradients, and the rows of all nodes."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from unilaunch_graph.exchange.gather import gather_rows
from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.mindspore.ranks import Ranks
from unilaunch_graph.network.checks import check_count, check_rows

Gradients = TypeVar("Gradients", Tensor, Sequence[Tensor])


def halo(rows: Tensor, part: GraphPart) -> Tensor:
    """Return the rows of the owned nodes, followed by the rows of the halo nodes. All ranks must call this.

    Differentiable once: backward sends the gradients of the halo rows to their owners, which add them in the order of
    the ranks. A second derivative raises NotImplementedError.

    Args:
        rows: One row for each owned node; any dtype of numpy's. (num_owned, ...)
        part: This rank's part.

    Returns:
        A new tensor. (num_owned + num_halo, ...)

    Raises:
        ValueError: *rows* does not have num_owned rows.
    """
    check_rows(rows, part.num_owned, "num_owned")
    whole = part.ranks.apply(part.operators.halo, rows.reshape(part.num_owned, -1))
    return whole.reshape(-1, *rows.shape[1:])


def sum_halo(rows: Tensor, part: GraphPart) -> Tensor:
    """Return the rows of the owned nodes, with other ranks' rows of the same nodes added. All ranks must call this.

    The transpose of `halo`: each rank sends the rows of its halo nodes to their owners. Differentiable once.

    Args:
        rows: One row for each owned node and each halo node. (num_owned + num_halo, ...)
        part: This rank's part.

    Returns:
        A new tensor. (num_owned, ...)

    Raises:
        ValueError: *rows* does not have num_owned + num_halo rows.
    """
    check_rows(rows, part.num_owned + part.num_halo, "num_owned + num_halo")
    summed = part.ranks.apply(part.operators.halo_sum, rows.reshape(len(rows), -1))
    return summed.reshape(-1, *rows.shape[1:])


def mean(losses: Tensor, count: int, part: GraphPart | None = None) -> Tensor:
    """Return the sum of all ranks' *losses*, divided by *count*: the loss of the whole graph, on every rank.

    All ranks must call this, once for each loss. Each rank's gradient is its own nodes' share; `sum_gradients` adds the
    shares. Terms that do not come from nodes (a penalty on the weights) must not be added to the result, since
    `sum_gradients` would count them once per rank: use the optimizer's `weight_decay`.

    Args:
        losses: One for each of this rank's nodes that have one; there may be none: `reduction="none"` gives that. Bool
            and integers are allowed, for a share of nodes. (rows,) or (rows, columns)
        count: Number of nodes on all ranks: `part.num_train`.
        part: This rank's part; None for the one that the script has loaded.

    Raises:
        ValueError: *count* is not positive, or *losses* is a sum: MindSpore's own sum over no rows is garbage.
    """
    check_count(count)
    if losses.ndim == 0:
        raise ValueError("mean: expected one loss for each node, as reduction='none' gives them, and not their sum")
    ranks = Ranks.of(part)
    total: Tensor = _Mean(ranks, count)(losses, ranks.last)
    ranks.forget_order()
    return total


class _Mean(nn.Cell):  # type: ignore[misc]
    """A mean over ranks in which each rank's own losses have their own gradient; see `Ranks` for *last*.

    It is computed by numpy: MindSpore rounds a number of Python's to float32 first.
    """

    def __init__(self, ranks: Ranks, count: int) -> None:
        super().__init__()
        self.ranks, self.count = ranks, count

    def construct(self, losses: Tensor, last: Tensor) -> Tensor:  # noqa: ARG002
        array = losses.asnumpy()
        total = np.array([array.sum()], array.dtype if array.dtype.kind == "f" else np.float64)
        self.ranks.collectives.all_reduce(total)
        return Tensor((total / self.count).astype(total.dtype).reshape(()))

    def bprop(self, losses: Tensor, last: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        share = np.full(losses.shape, grad.asnumpy() / self.count, grad.asnumpy().dtype)
        return Tensor.from_numpy(share), ops.zeros_like(last)


def sum_gradients(gradients: Gradients, part: GraphPart | None = None) -> Gradients:
    """Return the gradients, each summed over all ranks, in one all-reduce per dtype: the same bits on every rank.

    All ranks must call this, once before each step of the optimizer: with gradient accumulation on the sums.

    Args:
        gradients: As `mindspore.grad` and `mindspore.value_and_grad` return them: a tensor, or a tuple of tensors; the
            same shapes on every rank.
        part: This rank's part; None for the one that the script has loaded.
    """
    if isinstance(gradients, Tensor):
        return cast("Gradients", sum_gradients((gradients,), part)[0])
    job_ranks = Ranks.of(part)
    arrays = [gradient.asnumpy() for gradient in gradients]
    summed = list(gradients)
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        places = [place for place, array in enumerate(arrays) if array.dtype == dtype]
        flat = np.concatenate([arrays[place].ravel() for place in places])
        job_ranks.collectives.all_reduce(flat)
        pieces = np.split(flat, np.cumsum([arrays[place].size for place in places]))
        for place, piece in zip(places, pieces, strict=False):  # the last piece is empty
            summed[place] = Tensor(piece.reshape(arrays[place].shape))
    return cast("Gradients", tuple(summed))


def gather(rows: Tensor, part: GraphPart) -> Tensor | None:
    """Return the rows of all nodes on rank 0, in the user's order of the nodes; None on the other ranks.

    All ranks must call this. No gradient passes.

    Args:
        rows: One row for each owned node; any dtype of numpy's. (num_owned, ...)
        part: This rank's part.

    Returns:
        On rank 0: (num_nodes, ...)

    Raises:
        ValueError: *rows* does not have num_owned rows.
    """
    check_rows(rows, part.num_owned, "num_owned")
    sent = rows.reshape(part.num_owned, -1).asnumpy()[: part.arrays.num_owned]
    whole = np.empty((0 if part.rank else part.num_nodes, sent.shape[1]), sent.dtype)

    def put(nodes: NDArray[np.int32], values: NDArray[Any]) -> None:
        whole[nodes] = values

    gather_rows(part.arrays, sent, part.ranks.collectives, put)
    return None if part.rank else Tensor(whole.reshape(-1, *rows.shape[1:]))
