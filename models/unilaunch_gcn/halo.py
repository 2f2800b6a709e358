"""The halo exchange: each part gets the rows of its remote neighbours from their owners, and nothing else."""

from typing import Any

import numpy as np

from unilaunch.backend import Collectives, Exchange
from unilaunch_gcn.arrays import Rows
from unilaunch_gcn.meter import Meter
from unilaunch_gcn.partition import Part


class HaloExchange:
    """Exchanges of one part, on host arrays whose buffers are kept from epoch to epoch.

    Args:
        part: The part: which rows go where.
        collectives: The way to the other parts.
        meter: Counts the bytes that arrive, and the time spent waiting.
    """

    def __init__(self, part: Part, collectives: Collectives, meter: Meter) -> None:
        self.collectives = collectives
        self.meter = meter
        self.send_rows = part.send_rows
        self.send_counts = part.send_counts.tolist()
        self.receive_counts = part.halo_counts.tolist()
        self.buffers: dict[tuple[int, Any], tuple[Rows, Rows]] = {}

    def begin(self, rows: Rows) -> "Arriving":
        """Start to send the owned rows that others need.

        Args:
            rows: All owned rows. (num_owned, width)
        """
        sent, received = self._buffers(rows.shape[1], rows.dtype)
        np.take(rows, self.send_rows, axis=0, out=sent, mode="clip")  # clip: without it, take makes a copy first
        with self.meter.communication():
            exchange = self.collectives.exchange(sent, self.send_counts, received, self.receive_counts)
        self.meter.received(received.nbytes)
        return Arriving(exchange, received, self.meter)

    def _buffers(self, width: int, dtype: Any) -> tuple[Rows, Rows]:
        key = (width, dtype)
        if key not in self.buffers:
            sent, received = len(self.send_rows), sum(self.receive_counts)
            self.buffers[key] = (np.empty((sent, width), dtype), np.empty((received, width), dtype))
        return self.buffers[key]


class Arriving:
    """Halo rows on their way."""

    def __init__(self, exchange: Exchange, received: Rows, meter: Meter) -> None:
        self.exchange = exchange
        self.received = received
        self.meter = meter

    def progress(self) -> None:
        """Let the rows come nearer; called between pieces of other work."""
        with self.meter.communication():
            self.exchange.progress()

    def wait(self) -> Rows:
        """Return the halo rows, in the order of `Part.halo`; valid until the next exchange. (num_halo, width)"""
        with self.meter.communication():
            self.exchange.wait()
        return self.received
