"""From edges to nodes: sums, means and softmax over the in-edges of each owned node, without a scatter."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from mindspore import Tensor, nn
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats, Rows
from unilaunch_graph.mindspore.part import GraphPart, only_pynative
from unilaunch_graph.network.functions import check_rows
from unilaunch_mindspore.linear import HALVES, Apply, FirstDerivative, Folded, OnHost, as_matrix, widened


def segment_sum(messages: Tensor, part: GraphPart) -> Tensor:
    """Return the sum of the messages to each owned node; 0 for a node without in-edges.

    Args:
        messages: One for each edge, in the order of `part.edge_index`. (E, ...)
        part: This rank's part.

    Returns:
        (num_owned, ...)

    Raises:
        ValueError: Another number of messages than of edges.
    """
    _check(messages, part)
    made = part.operators.made
    if SegmentSum not in made:
        made[SegmentSum] = Apply(OnHost(Folded(SegmentSum(part.operators.edges.indptr))))
    return made[SegmentSum](messages)


def segment_mean(messages: Tensor, part: GraphPart) -> Tensor:
    """Return the mean of the messages to each owned node, as `segment_sum` their sum. (num_owned, ...)"""
    degrees = np.maximum(np.diff(part.operators.edges.indptr), 1)
    sums = segment_sum(messages, part)
    return sums / Tensor(degrees).astype(sums.dtype).reshape(-1, *[1] * (sums.ndim - 1))


def segment_softmax(scores: Tensor, part: GraphPart) -> Tensor:
    """Return the softmax of the scores of each owned node's in-edges, for each column.

    Args:
        scores: One or several for each edge, in the order of `part.edge_index`. (E, ...)
        part: This rank's part.

    Returns:
        The shares: those of a node's in-edges sum to 1. (E, ...)

    Raises:
        ValueError: Another number of scores than of edges.
    """
    _check(scores, part)
    if scores.dtype in HALVES:
        return segment_softmax(widened(scores), part).astype(scores.dtype)
    return _Softmax(SegmentSoftmax(part.operators.edges.indptr))(scores)


def _check(rows: Tensor, part: GraphPart) -> None:
    only_pynative()
    check_rows(rows, part.edge_index.shape[1], "edges")


class _Softmax(nn.Cell):  # type: ignore[misc]
    def __init__(self, softmax: "SegmentSoftmax") -> None:
        super().__init__()
        self.softmax = softmax
        self.derivative = FirstDerivative(self._backward)

    def construct(self, scores: Tensor) -> Tensor:
        return Tensor.from_numpy(self.softmax.forward(as_matrix(scores.asnumpy())).reshape(scores.shape))

    def bprop(self, scores: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor]:  # noqa: ARG002  (MindSpore's signature)
        return (self.derivative(out, grad),)

    def _backward(self, out: Tensor, grad: Tensor) -> Tensor:
        found = self.softmax.backward(as_matrix(out.asnumpy()), as_matrix(grad.asnumpy()))
        return Tensor.from_numpy(found.reshape(out.shape))


class SegmentSum:
    """The sum of each node's messages, as a linear operator: (num_edges, width) -> (num_owned, width).

    Args:
        indptr: Where each node's in-edges begin. (num_owned + 1,)
    """

    def __init__(self, indptr: NDArray[np.integer[Any]]) -> None:
        self.indptr = indptr
        self.degrees = np.diff(indptr)
        self.order = np.arange(indptr[-1])

    def matmat(self, messages: Rows) -> Rows:
        """Return the sums; they are added in the order of the edges. (num_owned, width)"""
        if messages.dtype == bool:
            messages = messages.astype(np.int32)  # else True + True would be True
        ones = np.ones(len(messages), messages.dtype)
        shape = (len(self.degrees), len(messages))
        sums: Rows = sp.csr_array((ones, self.order, self.indptr), shape=shape) @ messages
        return sums

    def rmatmat(self, rows: Rows) -> Rows:
        """Return each edge's target's row. (num_edges, width)"""
        return np.repeat(rows, self.degrees, axis=0)


class SegmentSoftmax:
    """The softmax of each node's scores, for each column: Velickovic et al. (ICLR 2018), equation 2.

    Args:
        indptr: Where each node's in-edges begin. (num_owned + 1,)
    """

    def __init__(self, indptr: NDArray[np.integer[Any]]) -> None:
        self.sum = SegmentSum(indptr)
        self.starts = indptr[:-1][self.sum.degrees > 0]
        self.lengths = self.sum.degrees[self.sum.degrees > 0]

    def forward(self, scores: Floats) -> Floats:
        """Return the shares; those of a node sum to 1. (num_edges, columns)"""
        if not len(scores):
            return np.zeros_like(scores)
        peaks = np.maximum.reduceat(scores, self.starts, axis=0)
        shares: Floats = np.exp(scores - np.repeat(peaks, self.lengths, axis=0))
        shares /= self.sum.rmatmat(self.sum.matmat(shares))
        return shares

    def backward(self, shares: Floats, gradient: Floats) -> Floats:
        """Return the gradient of the scores, from the shares and their gradient. (num_edges, columns)"""
        weighted = shares * gradient
        result: Floats = weighted - shares * self.sum.rmatmat(self.sum.matmat(weighted))
        return result
