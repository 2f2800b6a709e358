"""The edges of the whole graph on a device, in the arithmetic that the tensors of torch and of MindSpore share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.backend import Collectives, Exchange
from unilaunch_graph.arrays import DeviceArrays, FloatType, Ids, Indices
from unilaunch_graph.exchange.column_switch import ColumnSwitch
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.operators.aggregation import Finish
from unilaunch_graph.operators.normalization import edge_weights
from unilaunch_graph.partition.part import Part


def edges_on_device(
    part: Part, dtype: FloatType, arrays: DeviceArrays, collectives: Collectives, meter: Meter
) -> "HaloEdges | ColumnEdges":
    """Return W on a device: over the halo, or, where ranks divide columns, over all-to-alls.

    Args:
        part: This rank's part.
        dtype: Type of the rows.
        arrays: The framework's arrays on the device.
        collectives: The ranks' collectives on tensors of the device.
        meter: Counts bytes and waiting.
    """

    def matrix(indptr: Ids, indices: Indices, weights: NDArray[np.float32], shape: tuple[int, int]) -> Any:
        return arrays.sparse(indptr, indices, edge_weights(weights, indices, dtype), shape)

    if whole := part.adjacency:
        switch = ColumnSwitch(part, whole, collectives, meter, arrays)
        every = matrix(whole.indptr, whole.indices, whole.weights, (part.num_nodes, part.num_nodes))
        return ColumnEdges(switch, every)
    send_rows = arrays.tensor(part.send_rows.astype(np.int64))
    halo = DeviceHalo(part, collectives, meter, lambda rows: arrays.take(rows, send_rows), arrays.empty)
    owned = matrix(part.owned_indptr, part.owned_indices, part.owned_weights, (part.num_owned, part.num_owned))
    remote = matrix(part.halo_indptr, part.halo_indices, part.halo_weights, (part.num_owned, part.num_halo))
    return HaloEdges(halo, owned, remote)


@dataclass(frozen=True, slots=True)
class HaloEdges:
    """W of ranks that divide nodes.

    Attributes:
        halo: The way to the halo rows.
        owned: The owned columns of the owned rows, as the framework multiplies them.
        remote: The halo's columns of the owned rows.
    """

    halo: "DeviceHalo"
    owned: Any
    remote: Any

    def start_epoch(self, epoch: int | None) -> None:
        """Do nothing: what travels is exact in every epoch."""

    def matmat(self, rows: Any, finish: Finish) -> Any:
        """Return the owned rows of the product; the halo travels while the owned columns are multiplied."""
        exchange, received = self.halo.begin(rows)
        product = self.owned.matmat(rows)
        if exchange is not None:
            self.halo.wait(exchange)
            product += self.remote.matmat(received)
        return finish(product, None)

    rmatmat = matmat


@dataclass(frozen=True, slots=True)
class ColumnEdges:
    """W of ranks that divide columns: all edges, for some columns.

    Attributes:
        switch: The all-to-all between rows and columns.
        whole: The graph's matrix, as the framework multiplies it.
    """

    switch: ColumnSwitch
    whole: Any

    def start_epoch(self, epoch: int | None) -> None:
        """Do nothing: what travels is exact in every epoch."""

    def matmat(self, rows: Any, finish: Finish) -> Any:
        """Return the owned rows of the product."""
        product = self.whole.matmat(self.switch.to_columns(rows))
        return finish(self.switch.to_rows(product, rows.shape[1]), None)

    rmatmat = matmat


class DeviceHalo:
    """The halo rows, from the other ranks' devices.

    Args:
        part: This rank's part.
        collectives: The ranks' collectives on tensors of the device.
        meter: Counts bytes and waiting.
        take: Returns the rows that others need. (num_owned, width) -> (rows sent, width)
        empty: As in `arrays.Arrays`.
    """

    def __init__(
        self, part: Part, collectives: Collectives, meter: Meter, take: Callable[[Any], Any],
        empty: Callable[[tuple[int, int], Any], Any],
    ) -> None:  # fmt: skip
        self.collectives, self.meter, self.take, self.empty = collectives, meter, take, empty
        self.send_counts, self.receive_counts = part.send_counts.tolist(), part.halo_counts.tolist()

    def begin(self, rows: Any) -> tuple[Exchange | None, Any]:
        """Return the exchange that is on its way, None of a rank that is alone, and where the halo rows will be."""
        if len(self.send_counts) == 1:
            return None, None
        received = self.empty((sum(self.receive_counts), rows.shape[1]), rows)
        exchange = self.collectives.exchange(self.take(rows), self.send_counts, received, self.receive_counts)
        self.meter.received(received.nbytes)
        return exchange, received

    def wait(self, exchange: Exchange) -> None:
        """Wait for what `begin` began."""
        with self.meter.communication():
            exchange.wait()
