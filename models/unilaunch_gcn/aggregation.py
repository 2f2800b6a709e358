"""A_hat @ H over all parts, as a linear operator on arrays or tensors; X @ W over the owned nodes is in `host`.

A_hat is W, the weights of all edges, between two diagonal matrices. `gcn`: D^-1/2 (W + L) D^-1/2 of Kipf and Welling
(ICLR 2017, equation 2), with the degrees of the whole graph; L is the identity if the graph brings no loops of its own.
`sage`: D^-1 W, the mean over the neighbours of Hamilton, Ying and Leskovec (NeurIPS 2017); in a directed graph over the
sources of a node's in-edges, as PyG's SAGEConv. Ranks divide either the nodes or the columns of W's rows.

A framework wraps an operator by its own autograd in a few lines; the mathematics stands here once, for all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.arrays import Floats, FloatType, Rows, empty_rows
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.kernels.choice import Kernels, choose_kernels
from unilaunch_graph.kernels.portable import IDENTITY, Epilogue, Nonlinearity
from unilaunch_graph.operators.halo_edges import DirectedEdges, Finish, HaloEdges, serving
from unilaunch_graph.operators.row_blocks import RowBlocks, make_pool, multiply_blocks, transposed
from unilaunch_graph.partition.part import Adjacency, Part

if TYPE_CHECKING:
    from unilaunch_gcn.device import DeviceTensors


class Edges(Protocol):
    """W: the weights of all edges, as an operator that ranks apply together.

    The edges on host arrays are below, those on a device's tensors in `device`.
    """

    def matmat(self, rows: Any, finish: Finish) -> Any:
        """Return the owned rows of W @ rows, each given to *finish* once; all ranks must call it."""

    def rmatmat(self, rows: Any, finish: Finish) -> Any:
        """Return the owned rows of W.T @ rows in the same way; all ranks must call it."""


class Aggregation:
    """A_hat of the whole graph: each rank passes its owned rows and gets its owned rows of the product.

    Where W is symmetric, the transpose is the same product with the factors of both sides exchanged: the gradient of
    the owned rows needs the same halo and the same number of bytes. Where W is directed (`DirectedEdges`), partial sums
    travel home, as many bytes. All sums have a fixed order.

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
    """The operator left (W + loops) right; its transpose has W's, and left and right exchanged.

    The diagonal matrices are columns that rows are multiplied by; None stands for ones, or for no loops.

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

        A node without any edge and without a loop has the factor 0, as in PyG's GDC: its row and column of A_hat are 0.
        A diffusion with a high threshold leaves such nodes.

        Args:
            part: The part.
            conv: The normalisation: "gcn" or "sage".
            dtype: Type of the rows.
            tensor: Returns an array as the kind of array that the rows are.
            kernels: What scales and finishes rows on the host.
        """
        sums = part.strengths if conv == "sage" else np.sqrt(part.strengths + part.loops)
        factors = np.divide(1.0, sums, out=np.zeros(len(sums)), where=sums > 0)

        def column(values: Floats) -> Any:
            return tensor(values.astype(dtype)[:, None])

        left = column(factors) if (factors != 1).any() else None
        if conv == "sage":
            return cls(left, None, None, kernels)
        if not part.loops.any():
            return cls(left, left, None, kernels)
        return cls(left, left, ONES if (part.loops == 1).all() else column(part.loops), kernels)

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


class ColumnSwitch:
    """The all-to-all between some rows of all columns and all rows of some columns.

    The ranks' numbers of columns differ by at most one; no padding columns are added.

    Args:
        part: Which nodes this rank has.
        adjacency: The whole graph, mapped from a file: the ranks of a host share one copy in memory.
        collectives: The ranks' collectives.
        meter: Counts the bytes that arrive, and the time spent waiting.
        tensors: The framework of the tensors that are sent; None: arrays of the host are.
    """

    def __init__(
        self, part: Part, adjacency: Adjacency, collectives: Collectives, meter: Meter,
        tensors: "DeviceTensors | None" = None,
    ) -> None:  # fmt: skip
        self.index, self.collectives, self.meter = part.index, collectives, meter
        self.concatenate: Callable[[list[Any], int], Any] = (tensors.numeric if tensors else np).concatenate
        self.empty = tensors.empty if tensors else _empty
        self.adjacency = adjacency
        self.counts: list[int] = np.diff(adjacency.offsets).tolist()

    def to_columns(self, rows: Any) -> Any:
        """Return all nodes' rows of this rank's columns. (num_owned, width) -> (num_nodes, width of this rank)"""
        if len(self.counts) == 1:
            return rows
        spans = self._spans(rows.shape[1])
        sent = self.concatenate([rows[:, begin:end].reshape(-1) for begin, end in spans], 0)
        width = _length(spans[self.index])
        received = self._exchange(
            sent, [_length(span) * len(rows) for span in spans], [count * width for count in self.counts]
        )
        return received.reshape(sum(self.counts), width)

    def to_rows(self, columns: Any, width: int) -> Any:
        """Return all columns of this rank's nodes. (num_nodes, width of this rank) -> (num_owned, width)"""
        if len(self.counts) == 1:
            return columns
        spans, num_owned = self._spans(width), self.counts[self.index]
        own = _length(spans[self.index])
        received = self._exchange(
            columns.reshape(-1), [count * own for count in self.counts], [_length(span) * num_owned for span in spans]
        )
        blocks = [received[begin * num_owned : end * num_owned].reshape(num_owned, end - begin) for begin, end in spans]
        return self.concatenate(blocks, 1)

    def _exchange(self, sent: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Any:
        size = sum(receive_counts)
        received = self.empty((size, 1), sent)
        with self.meter.communication("all-to-all"):
            self.collectives.exchange(sent.reshape(-1, 1), send_counts, received, receive_counts).wait()
        self.meter.received((size - receive_counts[self.index]) * sent.itemsize)
        return received.reshape(-1)

    def _spans(self, width: int) -> list[tuple[int, int]]:
        """Return where each rank's columns begin and end."""
        num_parts = len(self.counts)
        return list(pairwise(part * width // num_parts for part in range(num_parts + 1)))


def _empty(shape: tuple[int, int], like: Any) -> Any:
    return np.empty(shape, like.dtype)


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def aggregation_over_halo(part: Part, halo: HaloExchange, threads: int, conv: str, dtype: FloatType) -> Aggregation:
    """Return A_hat of ranks that divide nodes.

    Args:
        part: This rank's part.
        halo: The way to its halo rows.
        threads: Threads that share the product's rows.
        conv: The normalisation: "gcn" or "sage".
        dtype: Type of the rows.
    """
    kernels, pool = choose_kernels(dtype, part.num_edges, threads), make_pool(threads)
    halo = serving(halo, kernels, pool)
    edges = (DirectedEdges if part.is_directed else HaloEdges)(part, halo, kernels, pool)
    scaling = DiagonalScaling.of(part, conv, dtype, kernels=edges.kernels)
    return Aggregation(edges, replace(scaling, rounds=halo.rounds))  # rows are gathered as they travel


def aggregation_over_columns(
    part: Part, switch: ColumnSwitch, threads: int, conv: str, dtype: FloatType
) -> Aggregation:
    """Return A_hat of ranks that divide columns (tensor parallelism).

    Each rank aggregates some columns of every node, and multiplies all columns of some nodes. Between the two stands an
    all-to-all, there and back, so what travels does not depend on the graph: (P - 1) / P of all rows, twice, shared by
    P ranks. That is less than the halo rows where these are more than 2 (P - 1) / P of the nodes.

    Args:
        part: This rank's nodes.
        switch: The all-to-all between rows and columns.
        threads: Threads that share the product's rows.
        conv: The normalisation: "gcn" or "sage".
        dtype: Type of the rows.
    """
    whole, num_nodes = switch.adjacency, part.num_nodes
    kernels, pool = choose_kernels(dtype, len(whole.indices), threads), make_pool(threads)
    forward = back = RowBlocks(whole.indptr, whole.indices, whole.weights, num_nodes, kernels)
    if part.is_directed:  # then each rank keeps the transposed edges in its memory too
        back = transposed(whole.indptr, whole.indices, whole.weights, num_nodes, kernels)

    def product(matrix: RowBlocks, columns: Rows) -> Rows:
        columns = np.ascontiguousarray(columns)
        aggregated = empty_rows(columns.shape, columns.dtype)
        multiply_blocks(matrix, columns, aggregated, pool)
        return aggregated

    edges = ColumnEdges(switch, partial(product, forward), partial(product, back))
    return Aggregation(edges, DiagonalScaling.of(part, conv, dtype, kernels=kernels))


@dataclass(frozen=True, slots=True)
class ColumnEdges:
    """W of ranks that divide columns: all edges, for some columns.

    Attributes:
        switch: The all-to-all between rows and columns.
        product: Returns W @ columns.
        transposed: Returns W.T @ columns.
    """

    switch: ColumnSwitch
    product: Callable[[Any], Any]
    transposed: Callable[[Any], Any]

    def matmat(self, rows: Any, finish: Finish) -> Any:
        """Return the owned rows of W @ rows."""
        return self._finished(self.product, rows, finish)

    def rmatmat(self, rows: Any, finish: Finish) -> Any:
        """Return the owned rows of W.T @ rows."""
        return self._finished(self.transposed, rows, finish)

    def _finished(self, product: Callable[[Any], Any], rows: Any, finish: Finish) -> Any:
        return finish(self.switch.to_rows(product(self.switch.to_columns(rows)), rows.shape[1]), None)
