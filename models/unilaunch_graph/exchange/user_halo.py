"""The exchanges of a user's own network as linear operators: the halo, and the rows of any nodes."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.calls import Purpose
from unilaunch_graph.arrays import Ids, Indices, Rows, empty_rows
from unilaunch_graph.exchange.fetching import Fetch
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import Exact
from unilaunch_graph.partition.part import Part


class RowHalo:
    """(num_owned, width) -> (num_owned + num_halo, width). The transpose sums halo rows at their owners.

    Args:
        part: The part of this rank.
        collectives: The ranks' collectives on host arrays.
        meter: Counts the bytes that arrive, and the time spent waiting; None: no counting.
    """

    def __init__(self, part: Part, collectives: Collectives, meter: Meter | None = None) -> None:
        self.collectives, self.num_owned = collectives, part.num_owned
        self.meter = meter or Meter()
        self.send_counts, self.halo_counts = part.send_counts.tolist(), part.halo_counts.tolist()
        self.exchange = HaloExchange(part, collectives, self.meter, Exact())
        self.home = _sums(part.send_rows, part.num_owned)

    def matmat(self, rows: Rows) -> Rows:
        """Return the owned rows, and below them the halo rows. (num_owned + num_halo, width)"""
        self.collectives.calls.purpose = Purpose.HALO
        arriving = self.exchange.begin(np.ascontiguousarray(rows))
        whole: Rows = empty_rows((self.num_owned + sum(self.halo_counts), rows.shape[1]), rows.dtype)
        whole[: self.num_owned] = rows
        whole[self.num_owned :] = arriving.wait()
        return whole

    def rmatmat(self, rows: Rows) -> Rows:
        """Return the owned rows plus the halo rows of other ranks for these nodes, added in the order of the ranks."""
        received: Any = np.empty((len(self.home.indices), rows.shape[1]), rows.dtype)
        halo = np.ascontiguousarray(rows[self.num_owned :])
        self.collectives.calls.purpose = Purpose.SUM_HALO
        with self.meter.communication():
            self.collectives.exchange(halo, self.halo_counts, received, self.send_counts).wait()
        self.meter.received(received.nbytes)
        whole: Rows = rows[: self.num_owned] + self.home @ received
        return whole


class RowFetch:
    """(num_owned, width) -> (nodes, width): the rows of any nodes. The transpose sums them at their owners.

    Args:
        halo: The exchange of the part.
        fetch: Which rows go where.
    """

    def __init__(self, halo: RowHalo, fetch: Fetch) -> None:
        self.halo, self.fetch = halo, fetch
        counts = np.array(fetch.send_counts), np.array(fetch.receive_counts)
        self.exchange = halo.exchange.among(fetch.send_rows.astype(np.int32), *counts)

    def matmat(self, rows: Rows) -> Rows:
        """Return the rows of the nodes. (nodes, width)"""
        self.halo.collectives.calls.purpose = Purpose.FETCH
        return self.exchange.begin(np.ascontiguousarray(rows)).wait()[self.fetch.places]

    def rmatmat(self, rows: Rows) -> Rows:
        """Return for each owned row the sum of the rows that all ranks have for it. (num_owned, width)"""
        fetch, sums = self.fetch, _sums(self.fetch.places, sum(self.fetch.receive_counts)) @ rows
        received: Any = np.empty((len(fetch.send_rows), rows.shape[1]), rows.dtype)
        self.halo.collectives.calls.purpose = Purpose.FETCH
        with self.halo.meter.communication():
            self.halo.collectives.exchange(sums, fetch.receive_counts, received, fetch.send_counts).wait()
        self.halo.meter.received(received.nbytes)
        whole: Rows = _sums(fetch.send_rows, self.halo.num_owned) @ received
        return whole


def _sums(places: Ids | Indices, size: int) -> sp.csr_array:
    """Return the matrix that adds rows, in their order, each to the row of its place. (size, rows)"""
    entries = (np.ones(len(places), np.int8), (places, np.arange(len(places))))
    return sp.coo_array(entries, shape=(size, len(places))).tocsr()
