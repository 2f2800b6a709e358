"""The edges of the whole graph on host arrays: ranks divide either the nodes or the columns."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.interfaces.backend import Collectives
from unilaunch_gcn.aggregation import Aggregation, DiagonalScaling, Finish
from unilaunch_graph.arrays import Arrays, FloatType, NumpyArrays, Rows, empty_rows
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import BFloat16
from unilaunch_graph.kernels.choice import Kernels, choose_kernels
from unilaunch_graph.operators.row_blocks import Block, Pool, RowBlocks, each, make_pool
from unilaunch_graph.partition.part import Adjacency, Part

NUMPY = NumpyArrays()


class ColumnSwitch:
    """The all-to-all between some rows of all columns and all rows of some columns.

    The ranks' numbers of columns differ by at most one; no padding columns are added.

    Args:
        part: Which nodes this rank has.
        adjacency: The whole graph, mapped from a file: the ranks of a host share one copy in memory.
        collectives: The ranks' collectives.
        meter: Counts the bytes that arrive, and the time spent waiting.
        arrays: The library of the arrays that are sent.
    """

    def __init__(
        self, part: Part, adjacency: Adjacency, collectives: Collectives, meter: Meter, arrays: Arrays = NUMPY
    ) -> None:
        self.index, self.collectives, self.meter, self.arrays = part.index, collectives, meter, arrays
        self.adjacency = adjacency
        self.counts: list[int] = np.diff(adjacency.offsets).tolist()

    def to_columns(self, rows: Any) -> Any:
        """Return all nodes' rows of this rank's columns. (num_owned, width) -> (num_nodes, width of this rank)"""
        if len(self.counts) == 1:
            return rows
        spans = self._spans(rows.shape[1])
        sent = self.arrays.concatenate([rows[:, begin:end].reshape(-1) for begin, end in spans], 0)
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
        return self.arrays.concatenate(blocks, 1)

    def _exchange(self, sent: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Any:
        size = sum(receive_counts)
        received = self.arrays.empty((size, 1), sent)
        with self.meter.communication("all-to-all"):
            self.collectives.exchange(sent.reshape(-1, 1), send_counts, received, receive_counts).wait()
        self.meter.received((size - receive_counts[self.index]) * sent.itemsize)
        return received.reshape(-1)

    def _spans(self, width: int) -> list[tuple[int, int]]:
        """Return where each rank's columns begin and end."""
        num_parts = len(self.counts)
        return list(pairwise(part * width // num_parts for part in range(num_parts + 1)))


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
    kernels, pool = kernels_of(part, threads, dtype), make_pool(threads)
    edges = (DirectedEdges if part.is_directed else HaloEdges)(part, halo, kernels, pool)
    rounds = isinstance(halo.wire, BFloat16)  # rows are gathered as they travel
    return Aggregation(edges, replace(DiagonalScaling.of(part, conv, dtype, kernels=edges.kernels), rounds=rounds))


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
    edges = ColumnEdges(switch, threads, dtype, is_directed=part.is_directed)
    return Aggregation(edges, DiagonalScaling.of(part, conv, dtype, kernels=edges.kernels))


def kernels_of(part: Part, threads: int, dtype: FloatType) -> Kernels:
    """Return the kernels of a part.

    Args:
        part: The part.
        threads: Threads that share the rows of a result.
        dtype: Type of the rows.
    """
    return choose_kernels(dtype, part.num_edges, threads)


class HaloEdges:
    """W of ranks that divide nodes, a symmetric one; the halo travels while the owned columns are multiplied.

    Args:
        part: This rank's part; it may have edges to some of its nodes only.
        halo: The way to its halo rows.
        kernels: What multiplies.
        pool: Threads that share the product's rows.
    """

    def __init__(self, part: Part, halo: HaloExchange, kernels: Kernels, pool: Pool) -> None:
        self.halo, self.kernels, self.pool = halo, kernels, pool
        self.num_rows = len(part.owned_indptr) - 1
        self.owned, self.remote = (
            RowBlocks(indptr, indices, weights, num_columns, self.kernels)
            for indptr, indices, weights, num_columns in (
                (part.owned_indptr, part.owned_indices, part.owned_weights, part.num_owned),
                (part.halo_indptr, part.halo_indices, part.halo_weights, part.num_halo),
            )
        )
        self.without_halo = {block.span.start for block in self.remote.blocks if not block.num_entries}

    def matmat(self, rows: Rows, finish: Finish) -> Rows:
        """Return the owned rows of W @ rows; each block of rows is finished while it is in the cache."""
        product: Rows = empty_rows((self.num_rows, rows.shape[1]), self.kernels.dtype)
        rows = np.ascontiguousarray(rows)
        arriving = self.halo.begin(rows)

        def multiply_owned(block: Block) -> None:
            block.multiply(rows, product[block.span], add=False)
            if block.span.start in self.without_halo:
                finish(product[block.span], block.span)

        each(self.pool, self.owned.blocks, multiply_owned, arriving.progress)
        halo_rows = arriving.wait()

        def multiply_halo(block: Block) -> None:
            block.multiply(halo_rows, product[block.span], add=True)
            finish(product[block.span], block.span)

        each(self.pool, self.remote.filled, multiply_halo, _nothing)
        return product

    rmatmat = matmat  # W is symmetric


class DirectedEdges:
    """W of ranks that divide nodes, where it is not symmetric: row = target, column = source.

    The transposed product makes sums for the halo rows too. They travel to the rows' owners, as many bytes as the halo
    rows, and are added in the order of the ranks, so that every run gives the same bits.

    Args:
        part: This rank's part of a directed graph.
        halo: The way to its halo rows, and, among other rows, back.
        kernels: What multiplies.
        pool: Threads that share the product's rows.
    """

    def __init__(self, part: Part, halo: HaloExchange, kernels: Kernels, pool: Pool) -> None:
        self.kernels, self.pool = kernels, pool
        self.forward = HaloEdges(part, halo, kernels, pool)
        self.owned = _transposed(part.owned_indptr, part.owned_indices, part.owned_weights, part.num_owned, kernels)
        self.remote = _transposed(part.halo_indptr, part.halo_indices, part.halo_weights, part.num_halo, kernels)
        self.num_owned, self.num_halo = part.num_owned, part.num_halo
        self.back = halo.among(np.arange(part.num_halo, dtype=np.int32), part.halo_counts, part.send_counts)
        count = len(part.send_rows)
        ones = np.ones(count, kernels.dtype)
        self.home = sp.coo_array((ones, (part.send_rows, np.arange(count))), shape=(part.num_owned, count)).tocsr()

    def matmat(self, rows: Rows, finish: Finish) -> Rows:
        """Return the owned rows of W @ rows."""
        return self.forward.matmat(rows, finish)

    def rmatmat(self, rows: Rows, finish: Finish) -> Rows:
        """Return the owned rows of W.T @ rows; the sums of halo rows travel while those of owned rows are made."""
        rows = np.ascontiguousarray(rows)
        leaving, product = (
            empty_rows((count, rows.shape[1]), self.kernels.dtype) for count in (self.num_halo, self.num_owned)
        )
        _multiply(self.remote, rows, leaving, self.pool, _nothing)
        arriving = self.back.begin(leaving)
        _multiply(self.owned, rows, product, self.pool, arriving.progress)
        product += self.home @ arriving.wait()
        finished: Rows = finish(product, None)
        return finished


class ColumnEdges:
    """W of ranks that divide columns: all edges, for some columns.

    Args:
        switch: The all-to-all between rows and columns.
        threads: Threads that share the product's rows.
        dtype: Type of the rows.
        is_directed: Whether W is not symmetric: then each rank keeps the transposed edges in its memory too.
    """

    def __init__(self, switch: ColumnSwitch, threads: int, dtype: FloatType, *, is_directed: bool = False) -> None:
        whole = switch.adjacency
        self.switch, self.kernels = switch, choose_kernels(dtype, len(whole.indices), threads)
        num_nodes = len(whole.indptr) - 1
        self.whole = RowBlocks(whole.indptr, whole.indices, whole.weights, num_nodes, self.kernels)
        self.back = self.whole
        if is_directed:
            self.back = _transposed(whole.indptr, whole.indices, whole.weights, num_nodes, self.kernels)
        self.pool = make_pool(threads)

    def matmat(self, rows: Rows, finish: Finish) -> Rows:
        """Return the owned rows of W @ rows."""
        return self._product(self.whole, rows, finish)

    def rmatmat(self, rows: Rows, finish: Finish) -> Rows:
        """Return the owned rows of W.T @ rows."""
        return self._product(self.back, rows, finish)

    def _product(self, matrix: RowBlocks, rows: Rows, finish: Finish) -> Rows:
        columns = self.switch.to_columns(np.ascontiguousarray(rows))
        aggregated = empty_rows(columns.shape, columns.dtype)
        _multiply(matrix, columns, aggregated, self.pool, _nothing)
        finished: Rows = finish(self.switch.to_rows(aggregated, rows.shape[1]), None)
        return finished


def _transposed(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], weights: NDArray[np.float32], num_columns: int,
    kernels: Kernels,
) -> RowBlocks:  # fmt: skip
    """Return the transposed matrix of edges in CSR form; the entries of a row stand by target."""
    values = weights if len(weights) else np.ones(len(indices), np.int8)
    matrix = sp.csr_array((values, indices, indptr), shape=(len(indptr) - 1, num_columns)).T.tocsr()
    kept = matrix.data if len(weights) else weights
    return RowBlocks(matrix.indptr, matrix.indices.astype(np.int32, copy=False), kept, len(indptr) - 1, kernels)


def _multiply(matrix: RowBlocks, rows: Rows, out: Rows, pool: Pool, between: Callable[[], None]) -> None:
    def multiply(block: Block) -> None:
        block.multiply(rows, out[block.span], add=False)

    each(pool, matrix.blocks, multiply, between)


def _nothing() -> None:
    pass
