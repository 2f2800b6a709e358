"""From the features of the given edges to those of the edges that a layer sums over: added self-loops get some too."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats

#: What the features of an added self-loop may be made of, beside numbers.
FILLS = ("mean", "add")


def choose_features(ends: NDArray[Any], places: NDArray[np.int64], num_owned: int, fill: str | None) -> sp.csr_array:
    """Return the matrix from the features of the given edges to those of chosen ones. (chosen edges, edges)

    Args:
        ends: Source row and target row of each given edge. (2, edges)
        places: As in `ChosenEdges`.
        num_owned: Owned nodes.
        fill: "mean" or "add": a self-loop that was added gets that of its node's in-edges that are no loops; None: 0.
    """
    source, target = ends
    kept, num_given = np.flatnonzero(source != target), ends.shape[1]
    columns = kept if fill is None else np.concatenate((kept, kept))
    rows = np.concatenate((kept, num_given + target[kept]))[: len(columns)]
    values = np.ones(len(columns))
    if fill == "mean":
        values[len(kept) :] /= np.bincount(target[kept], minlength=num_owned)[target[kept]]
    return sp.coo_array((values, (rows, columns)), shape=(num_given + num_owned, num_given)).tocsr()[places]


class ChosenFeatures:
    """The features of chosen edges, as a function of those of the given edges; it knows its derivative.

    Args:
        matrix: As `choose_features` returns it.
        loops: The chosen edges that are added self-loops with a constant; None: none has one. (edges,) bool
        constant: Their features: a number, or an array (width,).
    """

    def __init__(self, matrix: sp.csr_array, loops: NDArray[np.bool_] | None = None, constant: Any = 0) -> None:
        self.matrix, self.loops, self.constant = matrix, loops, constant

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the features of the chosen edges. (edges, width) -> (chosen edges, width)"""
        (given,) = inputs
        chosen: Floats = self.matrix.astype(given.dtype) @ given
        if self.loops is not None:
            chosen[self.loops] = np.asarray(self.constant)
        return chosen

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:  # noqa: ARG002
        """Return the gradient of the given edges' features."""
        return [self.matrix.T.astype(gradient.dtype) @ gradient]
