"""A user's network on a part, in both frameworks: the exchange of rows between the ranks, dropout, and accuracy.

First come the checks of arguments, which layers and losses use too.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from unilaunch.errors import InputError, SpecError
from unilaunch_graph.dropout import stream_keys
from unilaunch_graph.network.part import PartFields
from unilaunch_graph.purpose import Purpose

Tensor = TypeVar("Tensor")


def check_rows(rows: Any, expected: int, name: str) -> None:
    """Refuse rows of another number than *expected*, which the message calls *name*.

    Raises:
        ValueError: *rows* has another number of rows.
    """
    if rows.ndim == 0 or len(rows) != expected:
        raise ValueError(f"rows have the shape {tuple(rows.shape)}: expected {name} = {expected} rows")


def check_matrix(layer: str, rows: Any, num_owned: int) -> None:
    """Refuse rows that are not a matrix with one row for each owned node.

    Raises:
        ValueError: *rows* has another shape.
    """
    if rows.ndim != 2 or len(rows) != num_owned:  # noqa: PLR2004
        raise ValueError(
            f"{layer}: x has the shape {tuple(rows.shape)}, not ({num_owned}, width): one row for each owned node of "
            "the part"
        )


def check_floats(name: str, rows: Any) -> None:
    """Refuse rows that are not of a floating type.

    Raises:
        TypeError: They are integers or booleans.
    """
    kind = str(rows.dtype).lower()  # "torch.bfloat16", "Float32"
    if "float" not in kind and "complex" not in kind:
        raise TypeError(f"{name}: rows are {rows.dtype}: expected floats")


def check_count(count: int) -> None:
    """Refuse a number of nodes that no loss can be divided by.

    Raises:
        InputError: *count* is not positive.
    """
    if count <= 0:
        raise InputError(
            f"mean over {count} nodes: expected a positive number, such as part.num_train, which is 0 of a graph "
            "without a known label or with an empty train_mask: give labels of some nodes; predictions need none"
        )


#: How many numbers `numbers_of` returns.
NUMBERS = 6
#: What differs between ranks by no more than this share is rounding.
_ROUNDED = 1e-5


def numbers_of(count: float, class_weight: float | None = None) -> list[float]:
    """Return what a mean sends beside its losses: of two numbers that ranks share, (1, number, square) each.

    Their sums over the ranks tell each rank whether all have the same number. A rank without the second sends zeros.
    """
    weight = [0.0] * 3 if class_weight is None else [1.0, class_weight, class_weight**2]
    return [1.0, float(count), float(count) ** 2, *weight]


def refuse_different_numbers(package: str, count: float, sums: Sequence[float]) -> None:
    """Refuse a mean whose count, or whose weights of the classes, are of a rank's own nodes.

    Args:
        package: Whose `mean` the user has called: "ug.torch".
        count: This rank's.
        sums: The sums of all ranks' `numbers_of`: so all ranks raise, or none.

    Raises:
        SpecError: A number differs between the ranks.
    """
    if _differ(*sums[:3]):
        raise SpecError(
            f"{package}.mean: the count differs between the ranks, here {float(count):g}: expected that of the whole "
            f"graph: part.num_train, part.num_val, part.num_test, or {package}.sum_ranks of the ranks' own"
        )
    if _differ(*sums[3:]):
        raise SpecError(
            f"{package}.mean: the loss function's weights of the classes differ between the ranks: expected those of "
            f"the whole graph, from counts such as {package}.sum_ranks(torch.bincount(part.y[part.train_mask], "
            "minlength=part.num_classes))"
        )


def _differ(number: float, total: float, squares: float) -> bool:
    """Return whether *number* numbers differ, by their sum and the sum of their squares; not so of NaN."""
    return number > 0 and squares / number - (total / number) ** 2 > (_ROUNDED * total / number) ** 2


def check_probability(name: str, probability: float) -> None:
    """Refuse a probability of dropout of 1 or more.

    Raises:
        ValueError: *probability* is not in [0, 1).
    """
    if not 0 <= probability < 1:
        raise ValueError(f"{name}={probability}: expected at least 0 and less than 1")


def check_width(layer: str, in_channels: object) -> None:
    """Refuse an input width that PyG accepts but unilaunch's layers do not.

    Raises:
        ValueError: *in_channels* is not a positive integer.
    """
    if not isinstance(in_channels, int) or in_channels < 1:
        raise ValueError(f"{layer}: in_channels={in_channels}: a width of 1 or more; no pair, no -1")


def halo(rows: Tensor, part: PartFields[Tensor, Any, Any]) -> Tensor:
    """Return the rows of the owned nodes, followed by the rows of the halo nodes. All ranks must call this.

    Differentiable: backward sends the gradients of the halo rows to their owners, which add them in the order of the
    ranks, so that every run gives the same bits. In PyTorch that is `sum_halo`, so second derivatives are exact too; in
    MindSpore a second derivative raises NotImplementedError.

    Args:
        rows: One row for each owned node; any dtype, in MindSpore any of numpy's. (num_owned, ...)
        part: This rank's part.

    Returns:
        A tensor of its own. In PyTorch, of `part.x`, which is sent once, each call returns the same one; on one rank it
        is *rows* itself. (num_owned + num_halo, ...)

    Raises:
        ValueError: *rows* does not have num_owned rows.
    """
    check_rows(rows, part.num_owned, "num_owned")
    return part.with_halo(rows)


def sum_halo(rows: Tensor, part: PartFields[Tensor, Any, Any]) -> Tensor:
    """Return the rows of the owned nodes, with other ranks' rows of the same nodes added. All ranks must call this.

    The transpose of `halo`: each rank sends the rows of its halo nodes to their owners. Differentiable as `halo` is.

    Args:
        rows: One row for each owned node and each halo node. (num_owned + num_halo, ...)
        part: This rank's part.

    Returns:
        A new tensor. (num_owned, ...)

    Raises:
        ValueError: *rows* does not have num_owned + num_halo rows.
    """
    check_rows(rows, part.num_owned + part.num_halo, "num_owned + num_halo")
    return part.halo_summed(rows)


def fetch(rows: Tensor, nodes: Any, part: PartFields[Tensor, Any, Any]) -> Tensor:
    """Return the rows of any nodes of the graph, from the ranks that own them. All ranks must call this.

    For losses on pairs of nodes, such as link prediction: the ends of an edge may be on any ranks. A row that a rank
    needs several times is sent to it once. Differentiable as `halo` is: gradients go back to the owners. The first call
    lets each rank tell which nodes it owns; from then on a rank keeps 4 bytes for each node of the graph.

    Args:
        rows: One row for each owned node; any dtype, in MindSpore any of numpy's. (num_owned, ...)
        nodes: Global ids, each in [0, num_nodes), as many and as often as this rank needs; a tensor or an array of
            integers. In MindSpore at least one. Any shape
        part: This rank's part.

    Returns:
        A new tensor. (*nodes.shape, ...)

    Raises:
        ValueError: *rows* does not have num_owned rows.
        InputError: An id is not that of a node, or *nodes* are no integers; in MindSpore also, there are none.
    """
    check_rows(rows, part.num_owned, "num_owned")
    return part.fetched(rows, nodes)


def barrier(part: PartFields[Any, Any, Any]) -> None:
    """Return when every rank has called this. All ranks must call this.

    What one rank has done before it, the others find after it: rank 0 saves a model, all call `barrier`, all load it.

    Args:
        part: This rank's part.
    """
    part.ranks.barrier()


def gather(rows: Tensor, part: PartFields[Tensor, Any, Any]) -> Tensor | None:
    """Return the rows of all nodes on rank 0, in the user's order of the nodes; None on the other ranks.

    All ranks must call this. The ranks send some rows at a time, so that rank 0 needs the whole once. No gradient
    passes.

    Args:
        rows: One row for each owned node; any dtype, in MindSpore any of numpy's. (num_owned, ...)
        part: This rank's part.

    Returns:
        On rank 0: (num_nodes, ...), on the device of *rows*.

    Raises:
        ValueError: *rows* does not have num_owned rows.
    """
    check_rows(rows, part.num_owned, "num_owned")
    return part.gathered(rows)


def dropout(  # noqa: PLR0913  (each names a coordinate of the mask)
    rows: Tensor, part: Any, p: float, *, seed: int, step: int, layer: int = 0, training: bool = True
) -> Tensor:
    """Return *rows* with elements set to 0 with probability *p*, the others divided by 1 - p.

    Which ones depends on the seed, the step, the layer, the node's global id and the column, and on nothing else: any
    number of parts gives the same, and PyTorch and MindSpore give the same.

    Args:
        rows: One row for each owned node. (num_owned, width)
        part: This rank's part.
        p: Probability of an element to be dropped, 0 to 1, exclusive.
        seed: Seed of the training.
        step: Number of the epoch, or of the call: each draws anew.
        layer: Number of the layer, if there are several dropouts in a step.
        training: With False *rows* are returned as they are.

    Raises:
        ValueError: *p* is not in [0, 1), or *rows* does not have num_owned rows.
        TypeError: *rows* are integers, which cannot be divided by 1 - p.
    """
    check_probability("dropout: p", p)
    check_rows(rows, part.num_owned, "num_owned")
    if not training or p == 0:
        return rows
    check_floats("dropout", rows)
    result: Tensor = part.masked(rows, stream_keys(seed, step, layer), p)
    return result


def accuracy(out: Any, y: Any, mask: Any, part: Any) -> float:
    """Return the share of the nodes in *mask* whose highest score is that of their class: the same on every rank.

    All ranks must call this, and may decide by it: early stopping, a scheduler, the best model so far.

    Args:
        out: Scores of the owned nodes. (num_owned, num_classes)
        y: Their classes: `part.y`. (num_owned,) integers
        mask: Which nodes count: `part.val_mask`, say. (num_owned,) bool
        part: This rank's part.

    Raises:
        ValueError: *out*, *y* or *mask* has another shape.
        InputError: No node of any rank is in *mask*.
    """
    for rows, num_axes in ((out, 2), (y, 1), (mask, 1)):
        check_rows(rows, part.num_owned, "num_owned")
        if rows.ndim != num_axes:
            raise ValueError(f"accuracy: a tensor has the shape {tuple(rows.shape)}: expected {num_axes} axes")
    hits = (out.argmax(1) == y) & mask
    right, count = part.ranks.total(np.array([float(hits.sum()), float(mask.sum())]), Purpose.ACCURACY)
    check_count(int(count))
    return float(right / count)
