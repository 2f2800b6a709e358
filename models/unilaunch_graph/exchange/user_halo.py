"""The halo exchange of a user's own network, as a linear operator: it maps owned rows to owned and halo rows."""

from copy import copy
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.backend import Collectives
from unilaunch_graph.arrays import Ids, Rows, empty_rows
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
        self.home = self._home(part.send_rows)

    def among(self, send_rows: NDArray[Any], send_counts: list[int], receive_counts: list[int]) -> "RowHalo":
        """Return the operator that sends other rows; the arguments are those of `HaloExchange.among`."""
        other = copy(self)
        other.send_counts, other.halo_counts = send_counts, receive_counts
        other.exchange = self.exchange.among(send_rows, np.array(send_counts), np.array(receive_counts))
        other.home = self._home(send_rows)
        return other

    def _home(self, send_rows: NDArray[Any]) -> sp.csr_array:
        """Return the matrix that adds the rows that come back to the owned rows."""
        entries = (np.ones(len(send_rows), np.int8), (send_rows, np.arange(len(send_rows))))
        return sp.coo_array(entries, shape=(self.num_owned, len(send_rows))).tocsr()

    def matmat(self, rows: Rows) -> Rows:
        """Return the owned rows, and below them the halo rows. (num_owned + num_halo, width)"""
        arriving = self.exchange.begin(np.ascontiguousarray(rows))
        whole: Rows = empty_rows((self.num_owned + sum(self.halo_counts), rows.shape[1]), rows.dtype)
        whole[: self.num_owned] = rows
        whole[self.num_owned :] = arriving.wait()
        return whole

    def rmatmat(self, rows: Rows) -> Rows:
        """Return the owned rows plus the halo rows of other ranks for these nodes, added in the order of the ranks."""
        received: Any = np.empty((len(self.home.indices), rows.shape[1]), rows.dtype)
        halo = np.ascontiguousarray(rows[self.num_owned :])
        with self.meter.communication():
            self.collectives.exchange(halo, self.halo_counts, received, self.send_counts).wait()
        self.meter.received(received.nbytes)
        whole: Rows = rows[: self.num_owned] + self.home @ received
        return whole


class RowFetch:
    """(num_owned, width) -> (nodes, width): the rows of any nodes. The transpose sums them at their owners.

    Args:
        halo: The exchange that brings the rows.
        places: The row of each node among the owned rows and the received rows behind them. (nodes,)
    """

    def __init__(self, halo: RowHalo, places: Ids) -> None:
        self.halo, self.places = halo, places

    def matmat(self, rows: Rows) -> Rows:
        """Return the rows of the nodes. (nodes, width)"""
        return self.halo.matmat(rows)[self.places]

    def rmatmat(self, rows: Rows) -> Rows:
        """Return for each owned row the sum of the rows that all ranks have for it. (num_owned, width)"""
        num_rows, ones = self.halo.num_owned + sum(self.halo.halo_counts), np.ones(len(rows), np.int8)
        sums = sp.coo_array((ones, (self.places, np.arange(len(rows)))), shape=(num_rows, len(rows))).tocsr()
        return self.halo.rmatmat(sums @ rows)
