"""Between the ranks: halo rows, the loss, gradients, and the rows of all nodes."""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from unilaunch_graph.exchange.user_halo import gather_rows
from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_mindspore.linear import Apply


def halo(rows: Tensor, part: GraphPart) -> Tensor:
    """Return the owned rows, and below them the rows of the halo nodes, from the ranks that own them.

    All ranks must call it, as often as each other. Its gradient sends the halo rows' gradients home, where they are
    added in the order of the ranks.

    Args:
        rows: One for each owned node. (num_owned, ...) of any floating type
        part: This rank's part.

    Returns:
        (num_owned + num_halo, ...)
    """
    whole = part.with_halo(rows.reshape(part.num_owned, -1))
    return whole.reshape(-1, *rows.shape[1:])


def mean(total: Tensor, count: int, part: GraphPart) -> Tensor:
    """Return the sum of all ranks' *total*, divided by *count*.

    Its gradient is that of this rank's share; `sum_gradients` adds the ranks' gradients.

    Args:
        total: The sum of the losses of this rank's nodes. ()
        count: Nodes of the whole graph that have a loss, as `part.num_train`.
        part: This rank's part.
    """
    return Apply(_Mean(count, part))(total)


class _Mean:
    """The sum over all ranks by a number; as each rank's own share has a gradient."""

    def __init__(self, count: int, part: GraphPart) -> None:
        self.count, self.part = count, part

    def matmat(self, total: Tensor) -> Tensor:
        summed = np.array(total.asnumpy()).reshape(1)
        self.part.collectives.all_reduce(summed)
        return Tensor.from_numpy((summed / self.count).astype(summed.dtype).reshape(total.shape))

    def rmatmat(self, gradient: Tensor) -> Tensor:
        return gradient / self.count


def sum_gradients(gradients: Tensor | Sequence[Tensor], part: GraphPart) -> Tensor | tuple[Tensor, ...]:
    """Return the gradients, each summed over all ranks in a fixed order: the same bits on every rank.

    Args:
        gradients: As `mindspore.grad` or `mindspore.value_and_grad` return them: a tensor or a tuple of tensors, of the
            same shapes on every rank.
        part: This rank's part.
    """
    if isinstance(gradients, Tensor):
        return sum_gradients((gradients,), part)[0]
    arrays = [gradient.asnumpy() for gradient in gradients]
    flat = np.concatenate([np.zeros(0), *(array.ravel() for array in arrays)], dtype=np.result_type(*arrays))
    part.collectives.all_reduce(flat)
    ends = np.cumsum([array.size for array in arrays])
    views = (flat[end - array.size : end].reshape(array.shape) for array, end in zip(arrays, ends, strict=True))
    return tuple(Tensor(view.astype(array.dtype)) for view, array in zip(views, arrays, strict=True))


def gather(rows: Tensor, part: GraphPart) -> Tensor | None:
    """Return the rows of all nodes, in the order of the data set, on rank 0; None on the others. All must call it.

    Args:
        rows: One for each owned node. (num_owned, ...)
        part: This rank's part.

    Returns:
        (num_nodes, ...), without a gradient.
    """
    whole = gather_rows(rows.reshape(part.num_owned, -1).asnumpy(), part.local, part.collectives)
    return None if whole is None else Tensor(whole.reshape(-1, *rows.shape[1:]))
