"""The halo exchange of a user's own network, as a linear operator: it maps owned rows to owned and halo rows."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from unilaunch.backend import Collectives
from unilaunch_graph.arrays import Rows, empty_rows
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
        entries = (np.ones(len(part.send_rows), np.int8), (part.send_rows, np.arange(len(part.send_rows))))
        self.home = sp.coo_array(entries, shape=(part.num_owned, len(part.send_rows))).tocsr()

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
