"""Tensor parallelism: each rank aggregates some columns of every node, and multiplies all columns of some nodes.

Between the two stands an all-to-all, there and back, so what travels does not depend on the graph: (P - 1) / P of all
rows, twice, shared by P ranks. That is less than the halo rows where these are more than 2 (P - 1) / P of the nodes.
"""

from itertools import pairwise

import numpy as np

from unilaunch.backend import Collectives
from unilaunch_gcn.aggregation import ONES, Columns
from unilaunch_gcn.arrays import Ids, Rows
from unilaunch_gcn.meter import Meter
from unilaunch_gcn.normalization import node_scales
from unilaunch_gcn.partition import Adjacency, Part
from unilaunch_gcn.row_blocks import Block, RowBlocks, each, make_pool
from unilaunch_gcn.setting import Setting


class TensorAggregation:
    """A_hat of the whole graph, as `aggregation.Aggregation`: owned rows in, owned rows of the product out.

    Args:
        part: This rank's nodes.
        adjacency: The whole graph, mapped from a file: the ranks of a host have it in memory once.
        switch: The all-to-all between rows and columns.
        threads: Threads that share the product's rows.
        setting: What is trained.
    """

    def __init__(
        self, part: Part, adjacency: Adjacency, switch: "ColumnSwitch", threads: int, setting: Setting
    ) -> None:
        dtype = setting.dtype
        self.switch = switch
        self.scales = Columns.of(node_scales(setting.conv, part.strengths, part.loops), dtype)
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

    def _multiply(self, rows: Rows, scales: Columns) -> Rows:
        scaled = np.ascontiguousarray(rows if scales.right is None else rows * scales.right)
        columns = self.switch.to_columns(scaled)
        aggregated = np.empty_like(columns)

        def multiply(block: Block) -> None:
            aggregated[block.span] = block.multiply(columns)

        each(self.pool, self.whole.blocks, multiply, lambda: None)
        product = self.switch.to_rows(aggregated, rows.shape[1])
        if scales.loops is not None:
            product += scaled if scales.loops is ONES else scaled * scales.loops
        if scales.left is not None:
            product *= scales.left
        return product


class ColumnSwitch:
    """The all-to-all between some rows of all columns and all rows of some columns.

    Columns are dealt out as evenly as they go, none is added to make them so.

    Args:
        part: Which nodes this rank has.
        adjacency: Which nodes the others have.
        collectives: The way to them.
        meter: Counts the bytes that arrive, and the time spent waiting.
    """

    def __init__(self, part: Part, adjacency: Adjacency, collectives: Collectives, meter: Meter) -> None:
        self.index, self.collectives, self.meter = part.index, collectives, meter
        self.counts = np.diff(adjacency.offsets)

    def to_columns(self, rows: Rows) -> Rows:
        """Return all nodes' rows of this rank's columns. (num_owned, width) -> (num_nodes, own width)"""
        if len(self.counts) == 1:
            return rows
        bounds = self._bounds(rows.shape[1])
        sent = np.concatenate([rows[:, begin:end].ravel() for begin, end in pairwise(bounds)])
        own = bounds[self.index + 1] - bounds[self.index]
        received = self._exchange(sent, np.diff(bounds) * len(rows), self.counts * own)
        return received.reshape(int(self.counts.sum()), own)

    def to_rows(self, columns: Rows, width: int) -> Rows:
        """Return all columns of this rank's nodes. (num_nodes, own width) -> (num_owned, width)"""
        if len(self.counts) == 1:
            return columns
        bounds = self._bounds(width)
        widths, num_owned = np.diff(bounds), int(self.counts[self.index])
        received = self._exchange(columns.ravel(), self.counts * widths[self.index], widths * num_owned)
        rows = np.empty((num_owned, width), columns.dtype)
        for (begin, end), first in zip(pairwise(bounds), bounds[:-1] * num_owned, strict=True):
            rows[:, begin:end] = received[first : first + (end - begin) * num_owned].reshape(num_owned, end - begin)
        return rows

    def _exchange(self, sent: Rows, send_counts: Ids, receive_counts: Ids) -> Rows:
        received = np.empty(int(receive_counts.sum()), sent.dtype)
        with self.meter.communication("all-to-all"):
            arriving = (received[:, None], receive_counts.tolist())
            self.collectives.exchange(sent[:, None], send_counts.tolist(), *arriving).wait()
        self.meter.received((len(received) - int(receive_counts[self.index])) * received.itemsize)
        return received

    def _bounds(self, width: int) -> Ids:
        """Return where each rank's columns begin, and the end. (num_parts + 1,)"""
        num_parts = len(self.counts)
        bounds: Ids = np.arange(num_parts + 1) * width // num_parts
        return bounds
