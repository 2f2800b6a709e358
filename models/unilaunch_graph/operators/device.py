"""A_hat on a device, in the arithmetic that the tensors of torch and of MindSpore share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unilaunch.backend import Collectives, Exchange
from unilaunch_graph.exchange.column_switch import ColumnSwitch
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.part import Part


class DeviceAggregation:
    """The same operator as `aggregation.Aggregation` and `tensor_parallel.TensorAggregation`, on tensors of a device.

    Args:
        edges: The product with the weights of all edges.
        scales: The normalisation's left and right factors of the owned rows, and their loops. Each (num_owned, 1)
    """

    def __init__(self, edges: "HaloEdges | ColumnEdges", scales: Sequence[Any]) -> None:
        self.edges = edges
        self.left, self.right, self.loops = scales

    def matmat(self, rows: Any) -> Any:
        """Return the owned rows of A_hat @ H; all ranks must call it. (num_owned, width)"""
        return self._multiply(rows, self.left, self.right)

    def rmatmat(self, rows: Any) -> Any:
        """Return the owned rows of A_hat.T @ G; all ranks must call it. (num_owned, width)"""
        return self._multiply(rows, self.right, self.left)

    def _multiply(self, rows: Any, left: Any, right: Any) -> Any:
        scaled = rows * right
        return (self.edges.matmat(scaled) + self.loops * scaled) * left


@dataclass(frozen=True, slots=True)
class HaloEdges:
    """The edges of ranks that divide nodes.

    Attributes:
        halo: The way to the halo rows.
        owned: The owned columns of the owned rows, as the framework multiplies them.
        remote: The halo's columns of the owned rows.
    """

    halo: "DeviceHalo"
    owned: Any
    remote: Any

    def matmat(self, rows: Any) -> Any:
        """Return the owned rows of the product; the halo travels while the owned columns are multiplied."""
        exchange, received = self.halo.begin(rows)
        product = self.owned.matmat(rows)
        if exchange is None:
            return product
        self.halo.wait(exchange)
        return product + self.remote.matmat(received)


@dataclass(frozen=True, slots=True)
class ColumnEdges:
    """The edges of ranks that divide columns: all of them.

    Attributes:
        switch: The all-to-all between rows and columns.
        whole: The graph's matrix, as the framework multiplies it.
    """

    switch: ColumnSwitch
    whole: Any

    def matmat(self, rows: Any) -> Any:
        """Return the owned rows of the product."""
        return self.switch.to_rows(self.whole.matmat(self.switch.to_columns(rows)), rows.shape[1])


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
