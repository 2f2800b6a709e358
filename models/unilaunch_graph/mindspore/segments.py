"""From edges to nodes: sums, means and softmax over the in-edges of each owned node, without a scatter."""

import numpy as np
from mindspore import Tensor, nn

from unilaunch_graph.mindspore.part import GraphPart, only_pynative
from unilaunch_graph.network.functions import check_rows
from unilaunch_graph.operators.segments import SegmentSoftmax
from unilaunch_mindspore.linear import HALVES, FirstDerivative, as_matrix, widened


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
    return part.operators.segment_sum(messages)


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
    return _Softmax(part.operators.segment_softmax)(scores)


def _check(rows: Tensor, part: GraphPart) -> None:
    only_pynative()
    check_rows(rows, part.edge_index.shape[1], "edges")


class _Softmax(nn.Cell):  # type: ignore[misc]
    def __init__(self, softmax: SegmentSoftmax) -> None:
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
