"""The halo exchange: each part gets the rows of its remote neighbours from their owners, and nothing else.

For sums with constant weights partial sums may stand for some of the rows: `HaloExchange.covered`. `RowHalo` and
`RowFetch` are the exchanges of a user's own network as linear operators: the halo, and the rows of any nodes.
`Directory` plans the second: which rank has each node, and who sends which rows to whom.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch.interfaces.backend import Collectives, Exchange, groups
from unilaunch_graph.arrays import Ids, Indices, Rows, empty_rows
from unilaunch_graph.exchange.cover import Messages
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.shared_memory import SharedBuffers, share_buffers
from unilaunch_graph.kernels.portable import from_bfloat16, to_bfloat16
from unilaunch_graph.network.ranks import ScriptRanks
from unilaunch_graph.partition.part import Part
from unilaunch_graph.purpose import Purpose

#: Writes the product of the owned rows with a matrix of partial sums to an array.
Sum = Callable[[Rows, NDArray[Any]], None]


class HaloExchange:
    """Exchanges of one part, one after the other, with buffers that are reused.

    Attributes:
        messages: What is sent, and what is made of what arrives.

    Args:
        part: The part: which rows go where.
        collectives: The ranks' collectives.
        meter: Counts the bytes that arrive, and the time spent waiting; None: no counting.
        rounds: Floats travel as the words of bfloat16, the upper half of float32's bits: to nearest, ties to even.
    """

    def __init__(
        self, part: Part, collectives: Collectives, meter: Meter | None = None, *, rounds: bool = False
    ) -> None:  # fmt: skip
        self.part = part
        self.collectives = collectives
        self.meter = meter or Meter()
        self.rounds = rounds
        self.messages = Messages.of_rows(part)
        self.send_rows = part.send_rows
        self.send_counts = self.row_counts = part.send_counts.tolist()
        self.receive_counts = part.halo_counts.tolist()
        self.sums: Sequence[Sum] = ()
        self.kept = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self.may_share = True
        self.shared: SharedBuffers | None = None

    def among(self, send_rows: Indices, send_counts: Ids, receive_counts: Ids) -> "HaloExchange":
        """Return the exchange of other rows by messages, not while this one exchanges: they have the same buffers.

        Args:
            send_rows: Which rows are sent, grouped by receiver.
            send_counts: How many of them to each part. (num_parts,)
            receive_counts: How many rows come from each part. (num_parts,)
        """
        other = copy(self)
        other.may_share, other.shared, other.sums = False, None, ()
        other.send_rows = send_rows
        other.send_counts = other.row_counts = send_counts.tolist()
        other.receive_counts = receive_counts.tolist()
        return other

    def covered(self, messages: Messages, sums: Sequence[Sum]) -> "HaloExchange":
        """Return the exchange of *messages*, not while this one exchanges: they have the same buffers.

        Args:
            messages: What travels.
            sums: For each rank, what makes the partial sums that it gets.
        """
        other = copy(self)
        other.may_share, other.shared = False, None
        other.messages, other.sums = messages, sums
        other.send_rows, other.row_counts = messages.send_rows, messages.row_counts.tolist()
        other.send_counts, other.receive_counts = messages.send_counts.tolist(), messages.receive_counts.tolist()
        return other

    def shares_memory(self) -> bool:
        """Return whether every rank writes rows where their receiver reads them; all ranks must call it."""
        if self.may_share:
            self.may_share = False
            self.shared = share_buffers(self.collectives, self.send_counts, self.receive_counts)
        return self.shared is not None

    def begin(self, rows: Rows) -> "Travelling":
        """Start to send the owned rows that others need. (num_owned, width)"""
        self.shares_memory()
        form = rows.shape[1], np.uint16 if self.rounds else rows.dtype
        if not self.shared or not self.shared.pays(*form):
            return self._send(rows, *self._buffers(*form))
        received, places = self.shared.next(*form)
        for rank, place in places:
            self._pack(rows, rank, place)
        with self.meter.communication():
            exchange = self.shared.written()
        self.meter.received(received.nbytes)
        return Travelling(exchange, received, rows.dtype, self.meter)

    def _send(self, rows: Rows, sent: NDArray[Any], received: NDArray[Any]) -> "Travelling":
        """Start to send the rows in messages."""
        if self.sums:
            for rank, place in groups(sent, self.send_counts):
                self._pack(rows, rank, place)
        else:
            _take(rows, self.send_rows, sent)
        with self.meter.communication():
            exchange = self.collectives.exchange(sent, self.send_counts, received, self.receive_counts)
        self.meter.received(received.nbytes)
        return Travelling(exchange, received, rows.dtype, self.meter)

    def _pack(self, rows: Rows, rank: int, place: NDArray[Any]) -> None:
        """Write the message to a rank: rows, then partial sums."""
        begin, count = sum(self.row_counts[:rank]), self.row_counts[rank]
        _take(rows, self.send_rows[begin : begin + count], place[:count])
        if self.sums:
            self.sums[rank](rows, place[count:])

    def _buffers(self, width: int, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return buffers in reused memory, which grows to the widest exchange."""
        counts = sum(self.send_counts), sum(self.receive_counts)
        sizes = [rows * width * np.dtype(dtype).itemsize for rows in counts]
        if any(size > len(memory) for size, memory in zip(sizes, self.kept, strict=True)):
            # In place, for the exchanges made by `among`.
            self.kept[:] = [
                empty_rows((max(size, len(one)),), np.uint8) for size, one in zip(sizes, self.kept, strict=True)
            ]
        sent, received = (
            memory[:size].view(dtype).reshape(rows, width)
            for memory, size, rows in zip(self.kept, sizes, counts, strict=True)
        )
        return sent, received


def _take(rows: Rows, chosen: Indices, out: NDArray[Any]) -> None:
    """Write the chosen rows to an array of their type, or of bfloat16's words."""
    if rows.dtype == out.dtype:
        np.take(rows, chosen, axis=0, out=out, mode="clip")  # clip: without it, take makes a copy first
    else:
        out[...] = to_bfloat16(rows[chosen].astype(np.float32, copy=False))


class Travelling:
    """Halo rows of this epoch that are being received."""

    def __init__(self, exchange: Exchange, received: NDArray[Any], dtype: Any, meter: Meter) -> None:
        self.exchange, self.received, self.dtype, self.meter = exchange, received, dtype, meter
        self.arrived: Rows | None = None

    def progress(self) -> None:
        """Advance the communication; called between pieces of other work."""
        with self.meter.communication():
            self.exchange.progress()

    def wait(self) -> Rows:
        """Return the halo rows, in the order of `Part.halo`, or the messages; valid until the next exchange.

        (num_halo or messages, width)
        """
        if self.arrived is None:
            with self.meter.communication():
                self.exchange.wait()
            is_as_sent = self.received.dtype == self.dtype
            self.arrived = self.received if is_as_sent else from_bfloat16(self.received).astype(self.dtype, copy=False)
        return self.arrived


#: Where at least one of so many nodes is asked for, marking them is faster than sorting what is asked for.
_MANY = 8


class RowHalo:
    """(num_owned, width) -> (num_owned + num_halo, width). The transpose sums halo rows at their owners.

    Args:
        part: The part of this rank.
        collectives: The ranks' collectives on host arrays.
        meter: Counts the bytes that arrive, and the time spent waiting; None: no counting.
    """

    def __init__(self, part: Part, collectives: Collectives, meter: Meter | None = None) -> None:
        self.calls, self.num_owned, self.num_halo = collectives.calls, part.num_owned, part.num_halo
        self.exchange = HaloExchange(part, collectives, meter)
        self.back = self.exchange.among(np.arange(part.num_halo, dtype=np.int32), part.halo_counts, part.send_counts)
        self.home = _sums(part.send_rows, part.num_owned)

    def matmat(self, rows: Rows) -> Rows:
        """Return the owned rows, and below them the halo rows. (num_owned + num_halo, width)"""
        sent = np.ascontiguousarray(rows)
        self.calls.purpose = Purpose.HALO
        arriving = self.exchange.begin(sent)
        whole: Rows = empty_rows((self.num_owned + self.num_halo, rows.shape[1]), rows.dtype)
        whole[: self.num_owned] = rows
        whole[self.num_owned :] = arriving.wait()
        return whole

    def rmatmat(self, rows: Rows) -> Rows:
        """Return the owned rows plus the halo rows of other ranks for these nodes, added in the order of the ranks."""
        self.calls.purpose = Purpose.SUM_HALO
        whole: Rows = rows[: self.num_owned] + self.home @ self.back.begin(rows[self.num_owned :]).wait()
        return whole


@dataclass(frozen=True, slots=True)
class Fetch:
    """An exchange that brings the rows that a rank has asked for; a rank asks itself too.

    Attributes:
        send_rows: Owned rows that were asked for, grouped by the rank that did; of one rank no row twice. int64
        send_counts: How many of them to each rank. (num_parts,)
        receive_counts: How many rows come from each rank. (num_parts,)
        places: The row of each node among those that come. (nodes,) int64
    """

    send_rows: Ids
    send_counts: list[int]
    receive_counts: list[int]
    places: Ids


class RowFetch:
    """(num_owned, width) -> (nodes, width): the rows of any nodes. The transpose sums them at their owners.

    Args:
        halo: The exchange of the part.
        fetch: Which rows go where.
    """

    def __init__(self, halo: RowHalo, fetch: Fetch) -> None:
        self.calls, self.places = halo.calls, fetch.places
        counts = np.array(fetch.send_counts), np.array(fetch.receive_counts)
        self.exchange = halo.exchange.among(fetch.send_rows.astype(np.int32), *counts)
        self.back = halo.exchange.among(np.arange(counts[1].sum(), dtype=np.int32), *counts[::-1])
        self.home = _sums(fetch.send_rows, halo.num_owned)

    def matmat(self, rows: Rows) -> Rows:
        """Return the rows of the nodes. (nodes, width)"""
        sent = np.ascontiguousarray(rows)
        self.calls.purpose = Purpose.FETCH
        return self.exchange.begin(sent).wait()[self.places]

    def rmatmat(self, rows: Rows) -> Rows:
        """Return for each owned row the sum of the rows that all ranks have for it. (num_owned, width)"""
        self.calls.purpose = Purpose.FETCH
        whole: Rows = self.home @ self.back.begin(_sums(self.places, len(self.back.send_rows)) @ rows).wait()
        return whole


def _sums(places: Ids | Indices, size: int) -> sp.csr_array:
    """Return the matrix that adds rows, in their order, each to the row of its place. (size, rows)"""
    entries = (np.ones(len(places), np.int8), (places, np.arange(len(places))))
    return sp.coo_array(entries, shape=(size, len(places))).tocsr()


class Directory:
    """Where the row of each node of the graph is: 4 bytes for each node, from the first use on.

    Args:
        part: This rank's part.
        ranks: All ranks.
    """

    def __init__(self, part: Part, ranks: ScriptRanks) -> None:
        self.part: Part = part
        self.ranks: ScriptRanks = ranks
        #: Of each rank, the place of its first row, if the rows of all ranks stand one after the other. (num_parts,)
        self.begins: Ids = np.zeros(0, np.int64)
        #: The place of each node's row, by the node's global id. (num_nodes,)
        self.position: Indices = np.zeros(0, np.int32)

    def plan(self, nodes: NDArray[Any]) -> Fetch:
        """Return the exchange for *nodes*. All ranks must call this.

        Args:
            nodes: Global ids, in any order; the same one may stand there several times. (nodes,)

        Raises:
            InputError: *nodes* are no integers, or there is no such node.
        """
        self._check(nodes)
        if not len(self.begins):
            self._learn()
        wanted, places = self._unique(self.position[nodes.astype(np.int64, copy=False)])
        owners = np.searchsorted(self.begins, wanted, "right") - 1
        receive_counts = np.bincount(owners, minlength=self.part.num_parts)
        send_counts = self.ranks.swap(receive_counts, ones := [1] * self.part.num_parts, ones).tolist()
        send_rows = self.ranks.swap(wanted - self.begins[owners], receive_counts.tolist(), send_counts)
        return Fetch(send_rows, send_counts, receive_counts.tolist(), places)

    def _check(self, nodes: NDArray[Any]) -> None:
        if not len(nodes):
            return  # an empty list is one of floats
        if nodes.dtype.kind not in "iu":
            raise InputError(f"fetch: nodes are {nodes.dtype}: expected integers, the ids of nodes")
        if not 0 <= nodes.min() <= nodes.max() < self.part.num_nodes:
            wrong = nodes.min() if nodes.min() < 0 else nodes.max()
            raise InputError(f"fetch: node {wrong}: expected ids from 0 to {self.part.num_nodes - 1}")

    def _learn(self) -> None:
        """Let each rank tell the others which nodes it owns."""
        owned, mine = self.part.owned, self.part.index
        owned = owned[owned >= 0]  # the row that is added to a part without edges is no node's
        sizes = np.zeros(self.part.num_parts, np.int64)
        sizes[mine] = len(owned)
        sizes = self.ranks.total(sizes)
        self.begins = np.cumsum(sizes) - sizes
        position = np.zeros(self.part.num_nodes, np.int32)
        position[owned] = self.begins[mine] + np.arange(len(owned))
        self.position = self.ranks.total(position)

    def _unique(self, position: Indices) -> tuple[Ids, Ids]:
        """Return the positions in order, each once, and the place of each given one among them."""
        if _MANY * len(position) < self.part.num_nodes:
            return np.unique(position, return_inverse=True)
        is_wanted = np.zeros(self.part.num_nodes, bool)
        is_wanted[position] = True
        places: Ids = np.cumsum(is_wanted)[position] - 1
        return np.flatnonzero(is_wanted), places
