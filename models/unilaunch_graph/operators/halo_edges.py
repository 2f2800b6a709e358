"""W, the weights of all edges between the nodes of all parts, as an operator that ranks apply together.

Each rank passes its owned rows, and gets its owned rows of the product. What the product needs of other ranks travels
while owned rows are multiplied: halo rows, or rows and partial sums (`serving`). Then come sums and means over the
in-edges of a part's owned nodes: `Neighbours` of rows that are there, `NeighboursOfAllParts` of owned rows.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from unilaunch_graph.arrays import Floats, FloatType, Rows, empty_rows
from unilaunch_graph.exchange.cover import plan_messages
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.kernels.choice import Kernels, choose_kernels
from unilaunch_graph.operators.edges import Edges
from unilaunch_graph.operators.row_blocks import Block, Pool, RowBlocks, each, multiply_blocks, transposed
from unilaunch_graph.partition.part import Part
from unilaunch_graph.purpose import Purpose

#: Turns rows of W @ H into rows of a normalised product, and returns them: which rows, None for all. It may change them
#: in place.
Finish = Callable[[Any, slice | None], Any]


def serving(halo: HaloExchange, kernels: Kernels, pool: Pool) -> HaloExchange:
    """Return the exchange that brings what a product with the edges needs; all ranks must call it.

    Where ranks share memory, or rows are rounded: the halo rows. Else what `covering` returns, as its arguments are.
    """
    if halo.part.num_parts == 1 or halo.rounds or halo.shares_memory():
        return halo
    return covering(halo, kernels, pool)


def covering(halo: HaloExchange, kernels: Kernels, pool: Pool) -> HaloExchange:
    """Return the exchange of the fewest rows and partial sums; all ranks must call it.

    Args:
        halo: The way to the halo rows of a part, which may have edges to some of its nodes only.
        kernels: What multiplies.
        pool: Threads that share the partial sums.
    """
    messages = plan_messages(halo.part, halo.collectives, halo.meter)

    def sum_for(rank: int) -> Callable[[Rows, Rows], None]:
        matrix = RowBlocks(*messages.sums(rank), halo.part.num_owned, kernels)
        return lambda rows, out: multiply_blocks(matrix, rows, out, pool)

    return halo.covered(messages, [sum_for(rank) for rank in range(halo.part.num_parts)])


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
                (*halo.messages.arriving, sum(halo.receive_counts)),
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

        each(self.pool, self.remote.filled, multiply_halo)
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
        self.owned = transposed(part.owned_indptr, part.owned_indices, part.owned_weights, part.num_owned, kernels)
        messages = halo.messages
        self.num_owned, self.num_received = part.num_owned, int(messages.receive_counts.sum())
        self.remote = transposed(*messages.arriving, self.num_received, kernels)
        every = np.arange(self.num_received, dtype=np.int32)
        self.back = halo.among(every, messages.receive_counts, messages.send_counts)
        indptr, indices, weights = messages.leaving
        values = weights.astype(kernels.dtype) if len(weights) else np.ones(len(indices), kernels.dtype)
        shape = len(indptr) - 1, part.num_owned
        self.home = sp.csr_array((values, indices, indptr), shape=shape).T.tocsr()

    def matmat(self, rows: Rows, finish: Finish) -> Rows:
        """Return the owned rows of W @ rows."""
        return self.forward.matmat(rows, finish)

    def rmatmat(self, rows: Rows, finish: Finish) -> Rows:
        """Return the owned rows of W.T @ rows; the sums of halo rows travel while those of owned rows are made."""
        rows = np.ascontiguousarray(rows)
        leaving, product = (
            empty_rows((count, rows.shape[1]), self.kernels.dtype) for count in (self.num_received, self.num_owned)
        )
        multiply_blocks(self.remote, rows, leaving, self.pool)
        arriving = self.back.begin(leaving)
        multiply_blocks(self.owned, rows, product, self.pool, arriving.progress)
        product += self.home @ arriving.wait()
        finished: Rows = finish(product, None)
        return finished


_ONES = np.empty(0, np.float32)


class Neighbours:
    """S or D^-1 S: S_ij sums the edges from source j to target i, or their weights; D holds the in-degrees, at least 1.

    Args:
        edges: The edges into the owned nodes.
        mean: Whether to divide by the in-degrees (Hamilton, Ying and Leskovec, NeurIPS 2017), or to sum.
        dtype: Type of the rows.
        pool: Threads that share the blocks, as `row_blocks.make_pool` makes them.
        weights: Weight of each edge; of no length if each is 1. (edges,)
    """

    def __init__(
        self, edges: Edges, dtype: FloatType, pool: ThreadPoolExecutor | None = None, weights: Floats = _ONES,
        *, mean: bool,
    ) -> None:  # fmt: skip
        self.edges, self.pool, self.weights = edges, pool, weights
        self.kernels = choose_kernels(dtype, edges.num_edges, 1)
        self.by_target = RowBlocks(edges.indptr, edges.indices, weights, edges.num_sources, self.kernels)
        self.scale = (1 / np.maximum(np.diff(edges.indptr), 1)).astype(dtype)[:, None] if mean else None

    @cached_property
    def by_source(self) -> RowBlocks:
        """The transposed matrix."""
        transposed = self.edges.transposed
        weights = self.weights[transposed.entries] if len(self.weights) else self.weights
        return RowBlocks(transposed.indptr, transposed.indices, weights, self.edges.num_targets, self.kernels)

    def matmat(self, rows: Rows) -> Rows:
        """Return the sum or mean of each owned node. (num_sources, width) -> (num_targets, width)"""
        summed = self._multiply(self.by_target, rows, self.edges.num_targets)
        if self.scale is not None:
            summed *= self.scale
        return summed

    def rmatmat(self, rows: Rows) -> Rows:
        """Return the transposed operator's product. (num_targets, width) -> (num_sources, width)"""
        scaled = rows if self.scale is None else rows * self.scale
        return self._multiply(self.by_source, scaled, self.edges.num_sources)

    def _multiply(self, blocks: RowBlocks, rows: Rows, num_rows: int) -> Rows:
        rows = np.ascontiguousarray(rows)
        product = empty_rows((num_rows, rows.shape[1]), rows.dtype)
        multiply_blocks(blocks, rows, product, self.pool)
        return product


class NeighboursOfAllParts:
    """The operator of `Neighbours` on the owned rows of all ranks: what they need of each other is part of it.

    Args:
        halo: The way to the halo rows of this rank's part.
        mean: As of `Neighbours`.
        dtype: Type of the rows.
        pool: Threads that share the blocks.
    """

    def __init__(
        self, halo: HaloExchange, dtype: FloatType, pool: ThreadPoolExecutor | None = None, *, mean: bool
    ) -> None:
        part = replace(halo.part, owned_weights=_ONES, halo_weights=_ONES)
        self.calls, kernels = halo.collectives.calls, choose_kernels(dtype, part.num_edges, 1)
        halo = covering(HaloExchange(part, halo.collectives, halo.meter), kernels, pool)
        self.edges = (DirectedEdges if part.is_directed else HaloEdges)(part, halo, kernels, pool)
        degrees = np.diff(part.owned_indptr + part.halo_indptr)
        self.scale = (1 / np.maximum(degrees, 1)).astype(dtype)[:, None] if mean else None

    def matmat(self, rows: Rows) -> Rows:
        """Return the sum or mean of each owned node; all ranks must call it. (num_owned, width)"""
        self.calls.purpose = Purpose.HALO
        return self.edges.matmat(rows, self._scaled)

    def rmatmat(self, rows: Rows) -> Rows:
        """Return the transposed operator's product; all ranks must call it. (num_owned, width)"""
        self.calls.purpose = Purpose.SUM_HALO
        return self.edges.rmatmat(rows if self.scale is None else rows * self.scale, lambda product, _: product)

    def _scaled(self, product: Rows, span: slice | None) -> Rows:
        if self.scale is not None:
            product *= self.scale if span is None else self.scale[span]
        return product
