"""The halo exchange: each part gets the rows of its remote neighbours from their owners, and nothing else.

For sums with constant weights partial sums may stand for some of the rows: `HaloExchange.covered`.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.interfaces.backend import Collectives, Exchange, groups
from unilaunch_graph.arrays import Ids, Indices, Rows, empty_rows
from unilaunch_graph.exchange.cover import Messages
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.shared_memory import SharedBuffers, share_buffers
from unilaunch_graph.kernels.portable import from_bfloat16, to_bfloat16
from unilaunch_graph.partition.part import Part

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
