"""The rows of any nodes: which rank has each of them, and who sends which rows to whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.arrays import Ids, Indices
from unilaunch_graph.partition.part import Part


class Swap(Protocol):
    """An exchange of integers in the host's memory."""

    def __call__(self, rows: NDArray[Any], send_counts: Sequence[int], receive_counts: Sequence[int]) -> NDArray[Any]:
        """Return what the other ranks have sent to this one. All ranks must call this."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """An exchange that brings the rows that a rank has asked for.

    Attributes:
        send_rows: Owned rows that other ranks need, grouped by receiver; within one receiver no row twice. int64
        send_counts: How many of them to each rank. (num_parts,)
        receive_counts: How many rows come from each rank. (num_parts,)
        places: The row of each node that was asked for, among the owned and then the received rows. (nodes,) int64
    """

    send_rows: Ids
    send_counts: list[int]
    receive_counts: list[int]
    places: Ids


class Directory:
    """Where the row of each node of the graph is: 4 bytes for each node, from the first use on.

    Args:
        part: This rank's part.
        swap: The ranks' exchange.
    """

    def __init__(self, part: Part, swap: Swap) -> None:
        self.part, self.swap = part, swap
        #: Of each rank, the place of its first row, if the rows of all ranks stand one after the other. (num_parts,)
        self.begins: Ids = np.zeros(0, np.int64)
        #: The place of each node's row, by the node's global id. (num_nodes,)
        self.position: Indices = np.zeros(0, np.int32)

    def plan(self, nodes: Ids) -> Fetch:
        """Return the exchange for *nodes*. All ranks must call this.

        Args:
            nodes: Global ids, in any order; the same one may stand there several times. (nodes,)

        Raises:
            InputError: *nodes* are no integers, or there is no such node.
        """
        self._check(nodes)
        if not len(self.begins):
            self._learn()
        position, mine = self.position[nodes], self.part.index
        is_wanted = np.zeros(self.part.num_nodes, bool)
        is_wanted[position] = True
        wanted = np.flatnonzero(is_wanted)  # by rank, and each row once
        owners = np.searchsorted(self.begins, wanted, "right") - 1
        is_remote, rows = owners != mine, wanted - self.begins[owners]
        receive_counts = np.bincount(owners[is_remote], minlength=self.part.num_parts).tolist()
        send_counts = self._ask(receive_counts)
        send_rows = self.swap(rows[is_remote], receive_counts, send_counts)
        places = np.where(is_remote, self.part.num_owned - 1 + np.cumsum(is_remote), rows)
        return Fetch(send_rows, send_counts, receive_counts, places[np.cumsum(is_wanted, dtype=np.int32)[position] - 1])

    def _check(self, nodes: Ids) -> None:
        if nodes.dtype.kind not in "iu":
            raise InputError(f"fetch: nodes are {nodes.dtype}: expected integers, the ids of nodes")
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self.part.num_nodes:
            wrong = nodes.min() if nodes.min() < 0 else nodes.max()
            raise InputError(f"fetch: node {wrong}: expected ids from 0 to {self.part.num_nodes - 1}")

    def _learn(self) -> None:
        """Let each rank tell the others which nodes it owns."""
        owned, others = self.part.owned, self.part.num_parts - 1
        owned = owned[owned >= 0]  # the row that is added to a part without edges is no node's
        sizes = self._ask([len(owned)] * (others + 1))
        sizes[self.part.index] = 0
        told = self.swap(np.tile(owned, others), self._to_others(len(owned)), sizes)
        sizes[self.part.index] = len(owned)
        begins = np.concatenate(([0], np.cumsum(sizes)))
        begin = begins[self.part.index]
        order = np.concatenate((told[:begin], owned, told[begin:]))
        self.position = np.empty(self.part.num_nodes, np.int32)
        self.position[order] = np.arange(len(order), dtype=np.int32)
        self.begins = begins[:-1]

    def _ask(self, numbers: list[int]) -> list[int]:
        """Return the number that each rank has for this one; 0 for this rank itself."""
        ones, others = self._to_others(1), np.delete(np.array(numbers, np.int64), self.part.index)
        answers: list[int] = np.insert(self.swap(others, ones, ones), self.part.index, 0).tolist()
        return answers

    def _to_others(self, count: int) -> list[int]:
        return [count * (rank != self.part.index) for rank in range(self.part.num_parts)]
