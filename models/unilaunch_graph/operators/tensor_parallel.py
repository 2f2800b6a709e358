"""Tensor parallelism: each rank aggregates some columns of every node, and multiplies all columns of some nodes.

Between the two stands an all-to-all, there and back, so what travels does not depend on the graph: (P - 1) / P of all
rows, twice, shared by P ranks. That is less than the halo rows where these are more than 2 (P - 1) / P of the nodes.
"""

import numpy as np

from unilaunch_graph.arrays import FloatType, Rows
from unilaunch_graph.exchange.column_switch import ColumnSwitch
from unilaunch_graph.operators.aggregation import ONES, DiagonalScaling
from unilaunch_graph.operators.normalization import node_scales
from unilaunch_graph.operators.row_blocks import Block, RowBlocks, each, make_pool
from unilaunch_graph.partition.part import Part


class TensorAggregation:
    """A_hat of the whole graph, as `aggregation.Aggregation`: owned rows in, owned rows of the product out.

    Args:
        part: This rank's nodes.
        switch: The all-to-all between rows and columns.
        threads: Threads that share the product's rows.
        conv: The normalisation: "gcn" or "sage".
        dtype: Type of the rows.
    """

    def __init__(self, part: Part, switch: ColumnSwitch, threads: int, conv: str, dtype: FloatType) -> None:
        adjacency = switch.adjacency
        self.switch = switch
        self.scales = DiagonalScaling.of(node_scales(conv, part.strengths, part.loops), dtype)
        self.whole = RowBlocks(adjacency.indptr, adjacency.indices, adjacency.weights, part.num_nodes, dtype)
        self.pool = make_pool(threads)

    def start_epoch(self, epoch: int | None) -> None:
        """Do nothing: what travels is exact in every epoch."""

    def matmat(self, rows: Rows) -> Rows:
        """Return the owned rows of A_hat @ H; all ranks must call it. (num_owned, width)"""
        return self._multiply(rows, self.scales)

    def rmatmat(self, rows: Rows) -> Rows:
        """Return the owned rows of A_hat.T @ G; all ranks must call it. (num_owned, width)"""
        return self._multiply(rows, self.scales.transposed)

    def _multiply(self, rows: Rows, scales: DiagonalScaling) -> Rows:
        scaled = np.ascontiguousarray(rows if scales.right is None else rows * scales.right)
        columns = self.switch.to_columns(scaled)
        aggregated = np.empty_like(columns)

        def multiply(block: Block) -> None:
            aggregated[block.span] = block.multiply(columns)

        each(self.pool, self.whole.blocks, multiply, lambda: None)
        product: Rows = self.switch.to_rows(aggregated, rows.shape[1])
        if scales.loops is not None:
            product += scaled if scales.loops is ONES else scaled * scales.loops
        if scales.left is not None:
            product *= scales.left
        return product
