"""From edges to nodes: sums, means and softmax over the in-edges of each owned node."""

import numpy as np
from mindspore import Tensor, nn

from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.operators.segments import SegmentSoftmax
from unilaunch_mindspore.linear import FirstDerivative


def segment_sum(messages: Tensor, part: GraphPart) -> Tensor:
    """Return the sum of the messages to each owned node; 0 for a node without in-edges.

    Args:
        messages: One for each edge, in the order of `part.edge_index`. (num_edges, ...)
        part: This rank's part.

    Returns:
        (num_owned, ...)
    """
    sums = part.segment_sum(messages.reshape(messages.shape[0], -1))
    return sums.reshape(-1, *messages.shape[1:])


def segment_mean(messages: Tensor, part: GraphPart) -> Tensor:
    """Return the mean of the messages to each owned node; 0 for a node without in-edges. (num_owned, ...)"""
    degrees = Tensor(np.maximum(np.diff(part.edges.indptr), 1)).astype(messages.dtype)
    return segment_sum(messages, part) / degrees.reshape(-1, *[1] * (messages.ndim - 1))


def segment_softmax(scores: Tensor, part: GraphPart) -> Tensor:
    """Return the softmax of the scores of each owned node's in-edges, for each column.

    Args:
        scores: One for each edge and, say, head, in the order of `part.edge_index`. (num_edges, ...)
        part: This rank's part.

    Returns:
        The shares: those of a node's in-edges sum to 1. (num_edges, ...)
    """
    shares = _Softmax(part.softmax)(scores.reshape(scores.shape[0], -1))
    return shares.reshape(scores.shape)


class _Softmax(nn.Cell):  # type: ignore[misc]
    def __init__(self, softmax: SegmentSoftmax) -> None:
        super().__init__()
        self.softmax = softmax
        self.once = FirstDerivative()

    def construct(self, scores: Tensor) -> Tensor:
        return Tensor.from_numpy(self.softmax.forward(scores.asnumpy()))

    def bprop(self, scores: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor]:  # noqa: ARG002  (MindSpore's signature)
        return (self.once(grad, Tensor.from_numpy(self.softmax.backward(out.asnumpy(), grad.asnumpy()))),)
