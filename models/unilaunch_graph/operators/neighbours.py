"""The sum or the mean over the in-edges of a part's owned nodes, as linear operators on host arrays."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property

import numpy as np

from unilaunch_graph.arrays import Floats, FloatType, Rows, empty_rows
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.kernels.choice import choose_kernels
from unilaunch_graph.operators.edges import Edges
from unilaunch_graph.operators.halo_edges import DirectedEdges, HaloEdges, covering
from unilaunch_graph.operators.row_blocks import RowBlocks, multiply_blocks
from unilaunch_graph.purpose import Purpose

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
