"""The exchange of rows between the ranks, for a user's network: checks, and the words for both frameworks."""

from typing import Any, TypeVar

from unilaunch_graph.network.checks import check_rows
from unilaunch_graph.network.part import PartFields

Tensor = TypeVar("Tensor")


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
    return part.sum_at_home(rows)


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

    All ranks must call this. The ranks send one after the other, so that rank 0 needs the whole once. No gradient
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
