"""The all-to-all of ranks that divide columns: from some rows of all columns to all rows of some columns, and back."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.arrays import Arrays, NumpyArrays
from unilaunch_graph.exchange.meter import Meter
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
