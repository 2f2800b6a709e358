"""Sums and softmax over the in-edges of each node. Edges stand in the order of their targets; host arrays."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats, Rows


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
