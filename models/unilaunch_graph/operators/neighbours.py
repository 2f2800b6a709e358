"""The sum or the mean over the in-edges of a part's owned nodes, as a linear operator on host arrays."""

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

from unilaunch_graph.arrays import Floats, FloatType, Rows, empty_rows
from unilaunch_graph.kernels.choice import choose_kernels
from unilaunch_graph.operators.edges import Edges
from unilaunch_graph.operators.row_blocks import Block, RowBlocks, each

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

        def multiply(block: Block) -> None:
            block.multiply(rows, product[block.span], add=False)

        each(self.pool, blocks.blocks, multiply, lambda: None)
        return product
