"""How a graph's matrix is normalised: the diagonal factors on both sides of W, its weights with the loops.

`gcn`: A_hat = D^-1/2 (W + L) D^-1/2 of Kipf and Welling (ICLR 2017, equation 2), with the degrees of the whole graph;
L is the identity if the graph brings no loops of its own. `sage`: D^-1 W, the mean over the neighbours of Hamilton,
Ying and Leskovec (NeurIPS 2017); in a directed graph over the sources of a node's in-edges, as PyG's SAGEConv.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats, FloatType, Indices, Rows
from unilaunch_graph.kernels.choice import Kernels
from unilaunch_graph.kernels.portable import IDENTITY, Epilogue, Nonlinearity
from unilaunch_graph.partition.part import Part


@dataclass(frozen=True, slots=True)
class Scales:
    """The operator left (W + loops) right; its transpose has W's, and left and right exchanged.

    Attributes:
        left: (n,) float64
        right: (n,) float64
        loops: (n,) float64
    """

    left: NDArray[np.float64]
    right: NDArray[np.float64]
    loops: NDArray[np.float64]


def node_scales(conv: str, strengths: NDArray[np.float64], loops: NDArray[np.float32]) -> Scales:
    """Return the factors of nodes.

    A node without any edge and without a loop has the factor 0, as in PyG's GDC: its row and column of A_hat are 0. A
    diffusion with a high threshold leaves such nodes.

    Args:
        conv: "gcn" or "sage".
        strengths: Sum of the weights of each node's edges in the whole graph, without that to itself. (n,)
        loops: Weight of the edge to itself. (n,)
    """
    if conv == "sage":
        left = _inverse(strengths)
        return Scales(left, np.ones(len(left)), np.zeros(len(left)))
    scale = _inverse(np.sqrt(strengths + loops))
    return Scales(scale, scale, loops.astype(np.float64))


def _inverse(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(1.0, sums, out=np.zeros(len(sums)), where=sums > 0)


def edge_weights(weights: NDArray[np.float32], indices: Indices, dtype: FloatType) -> Floats:
    """Return the weight of each edge: its own, or 1 in a graph that brings none. (edges,)"""
    return weights.astype(dtype) if len(weights) else np.ones(len(indices), dtype)


#: Turns rows of W @ H into rows of A_hat @ H, and returns them: which rows, None for all. It may change them in place.
Finish = Callable[[Any, slice | None], Any]


class Edges(Protocol):
    """W: the weights of all edges, as an operator that ranks apply together.

    `operators.host` has the edges on host arrays, `operators.device` those on a device's tensors.
    """

    def matmat(self, rows: Any, finish: Finish) -> Any:
        """Return the owned rows of W @ rows, each given to *finish* once; all ranks must call it."""

    def rmatmat(self, rows: Any, finish: Finish) -> Any:
        """Return the owned rows of W.T @ rows in the same way; all ranks must call it."""


class Aggregation:
    """A_hat of the whole graph: each rank passes its owned rows and gets its owned rows of the product.

    Where W is symmetric, the transpose is the same product with the factors of both sides exchanged: the gradient of
    the owned rows needs the same halo and the same number of bytes, and no partial sums whose order could matter. Where
    W is directed (`operators.host.DirectedEdges`), partial sums travel home, as many bytes.

    Args:
        edges: W.
        scaling: The normalisation.
    """

    def __init__(self, edges: Edges, scaling: "DiagonalScaling") -> None:
        self.edges, self.scaling = edges, scaling

    def matmat(self, rows: Any) -> Any:
        """Return the owned rows of A_hat @ H; all ranks must call it. (num_owned, width)"""
        scaled = self.scaling.scaled(rows)
        return self.edges.matmat(scaled, partial(self.scaling.finish, scaled))

    def of_product(self, multiply: Callable[[Epilogue], Rows], then: Nonlinearity) -> Rows:
        """Return the owned rows of A_hat @ H, then what follows, on the host; all ranks must call it.

        Args:
            multiply: Returns H, ended as told: so its rows are scaled while they are in the cache. (num_owned, width)
            then: What follows.
        """
        scaled = self.scaling.scaled_product(multiply)
        rows: Rows = self.edges.matmat(scaled, partial(self.scaling.finish, scaled, then=then))
        return rows

    def rmatmat(self, rows: Any) -> Any:
        """Return the owned rows of A_hat.T @ G; all ranks must call it. (num_owned, width)"""
        return self._back(self.scaling.transposed.scaled(rows))

    def rmatmat_scaled(self, rows: Any) -> Any:
        """Return the same of a G that has been multiplied by `back_factors`."""
        return self._back(self.scaling.rounded(rows))

    def _back(self, scaled: Any) -> Any:
        return self.edges.rmatmat(scaled, partial(self.scaling.transposed.finish, scaled))

    @property
    def back_factors(self) -> Any:
        """What `rmatmat` multiplies each row by before all else; None: nothing. (num_owned, 1)"""
        return self.scaling.left


#: Stands for loops that are all 1, as in a graph that brings none of its own.
ONES: Rows = np.ones((1, 1), np.float32)


@dataclass(frozen=True, slots=True)
class DiagonalScaling:
    """The diagonal matrices of `Scales`, as columns that rows are multiplied by; None stands for ones, or for no loops.

    Attributes:
        left: (n, 1)
        right: (n, 1)
        loops: (n, 1), or `ONES`
        kernels: What scales and finishes rows on the host.
        rounds: On the host, the rows that the edges multiply are rounded to bfloat16.
    """

    left: Any
    right: Any
    loops: Any
    kernels: Kernels | None = None
    rounds: bool = False

    @classmethod
    def of(
        cls, part: Part, conv: str, dtype: FloatType, tensor: Callable[[NDArray[Any]], Any] = np.asarray,
        kernels: Kernels | None = None,
    ) -> "DiagonalScaling":  # fmt: skip
        """Return the scaling of a part's owned rows.

        Args:
            part: The part.
            conv: The normalisation: "gcn" or "sage".
            dtype: Type of the rows.
            tensor: Returns an array as the kind of array that the rows are.
            kernels: What scales and finishes rows on the host.
        """
        scales = node_scales(conv, part.strengths, part.loops)

        def column(values: NDArray[np.float64]) -> Any:
            return tensor(values.astype(dtype)[:, None])

        left, right = (column(side) if (side != 1).any() else None for side in (scales.left, scales.right))
        if not scales.loops.any():
            return cls(left, right, None, kernels)
        return cls(left, right, ONES if (scales.loops == 1).all() else column(scales.loops), kernels)

    @property
    def transposed(self) -> "DiagonalScaling":
        """The scaling of the transposed matrix."""
        return replace(self, left=self.right, right=self.left)

    def restricted(self, inputs: NDArray[np.bool_], outputs: NDArray[np.bool_]) -> "DiagonalScaling":
        """Return the scaling of a matrix with some of the columns and rows.

        Args:
            inputs: Which columns. (n,)
            outputs: Which rows. (n,)
        """
        left, right = (
            None if side is None else side[chosen] for side, chosen in ((self.left, outputs), (self.right, inputs))
        )
        loops = self.loops if self.loops is None or self.loops is ONES else self.loops[outputs]
        return replace(self, left=left, right=right, loops=loops)

    def scaled(self, rows: Any) -> Any:
        """Return the rows that the edges multiply."""
        if self.kernels and self.rounds:
            return self.kernels.rounded(rows, self.right)
        if self.right is None:
            return rows
        return self.kernels.scaled(rows, self.right) if self.kernels else rows * self.right

    def rounded(self, rows: Any) -> Any:
        """Return what `scaled` does, of rows that have been multiplied by the right factor, or rounded too."""
        return self.kernels.rounded(rows) if self.kernels and self.rounds and rows.dtype != np.uint16 else rows

    def scaled_product(self, multiply: Callable[[Epilogue], Rows]) -> Any:
        """Return what `scaled` does, of the rows that *multiply* makes."""
        return self.rounded(multiply(Epilogue(self.right, rounds=self.rounds)))

    def finish(self, scaled: Any, product: Any, span: slice | None, *, then: Nonlinearity = IDENTITY) -> Any:
        """Add the loops to rows of W @ *scaled*, and multiply them by the left factor; on the host *then* follows."""
        own, loops, left = (
            None if rows is None or rows is ONES else rows if span is None else rows[span]
            for rows in (None if self.loops is None else scaled, self.loops, self.left)
        )
        if self.kernels:
            if then.mask and span:
                then = then._replace(mask=then.mask.of(span))
            self.kernels.finish(product, own, loops, left, then)
            return product
        if own is not None:
            product += own if loops is None else own * loops
        if left is not None:
            product *= left
        return product
