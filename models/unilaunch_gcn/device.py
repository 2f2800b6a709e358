"""The edges of the whole graph on a device, in the arithmetic that the tensors of torch and of MindSpore share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch_gcn.aggregation import Aggregation, DiagonalScaling, Finish
from unilaunch_gcn.column_switch import ColumnSwitch
from unilaunch_gcn.normalization import edge_weights
from unilaunch_graph.arrays import DeviceArrays, FloatType, Ids, Indices
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.operators.epilogue import Epilogue
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
    halo = DeviceHalo(part, collectives, meter, arrays)
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

    def matmat(self, rows: Any, finish: Finish) -> Any:
        """Return the owned rows of the product."""
        product = self.whole.matmat(self.switch.to_columns(rows))
        return finish(self.switch.to_rows(product, rows.shape[1]), None)

    rmatmat = matmat


class _Direction(NamedTuple):
    """A_hat, or its transpose.

    Attributes:
        scaling: The normalisation.
        sent: The right factors of the rows that are sent; None: each is 1. (rows sent, 1)
    """

    scaling: DiagonalScaling
    sent: Any


class FusedAggregation(Aggregation):
    """A_hat of ranks that divide nodes, in one pass over the edges: scaling, loops and epilogue are part of it.

    Args:
        edges: W; its matrices are `multiply`'s.
        scaling: The normalisation, in the type of the sums.
        multiply: `triton_kernels.multiply`.
        empty_sums: Returns an array for sums that are not finished yet, of a shape.
    """

    def __init__(
        self, edges: HaloEdges, scaling: DiagonalScaling, multiply: Callable[..., Any],
        empty_sums: Callable[[tuple[int, ...]], Any],
    ) -> None:  # fmt: skip
        super().__init__(edges, scaling)
        self.halo, self.owned, self.remote = edges.halo, edges.owned, edges.remote
        self.multiply, self.empty_sums = multiply, empty_sums
        self.forward, self.backward = (
            _Direction(side, None if side.right is None else self.halo.sent(side.right))
            for side in (scaling, scaling.transposed)
        )

    def finished(self, rows: Any, epilogue: Epilogue, out: Any) -> Any:
        """Return *out* after epilogue(A_hat @ rows) was written into it; all ranks must call it. (num_owned, width)"""
        return self._product(rows, self.forward, epilogue, out)

    @override
    def matmat(self, rows: Any) -> Any:
        return self._product(rows, self.forward, Epilogue(), rows.new_empty(rows.shape))

    @override
    def rmatmat(self, rows: Any) -> Any:
        return self._product(rows, self.backward, Epilogue(), rows.new_empty(rows.shape))

    def _product(self, rows: Any, direction: _Direction, epilogue: Epilogue, out: Any) -> Any:
        scaling = direction.scaling
        exchange, received = self.halo.begin(rows, direction.sent)
        if exchange is None:
            return self.multiply(self.owned, rows, out, scaling=scaling, epilogue=epilogue)
        sums = self.empty_sums(rows.shape)
        self.multiply(self.owned, rows, sums, scaling=DiagonalScaling(None, scaling.right, scaling.loops))
        self.halo.wait(exchange)
        rest = DiagonalScaling(scaling.left, None, None)
        return self.multiply(self.remote, received, out, scaling=rest, partial=sums, epilogue=epilogue)


class DeviceHalo:
    """The halo rows, from the other ranks' devices.

    Args:
        part: This rank's part.
        collectives: The ranks' collectives on tensors of the device.
        meter: Counts bytes and waiting.
        arrays: The framework's arrays on the device.
    """

    def __init__(self, part: Part, collectives: Collectives, meter: Meter, arrays: DeviceArrays) -> None:
        self.collectives, self.meter, self.arrays = collectives, meter, arrays
        self.send_rows = arrays.tensor(part.send_rows.astype(np.int64))
        self.send_counts, self.receive_counts = part.send_counts.tolist(), part.halo_counts.tolist()

    def sent(self, rows: Any) -> Any:
        """Return the rows that other ranks need, in their own type. (num_owned, width) -> (rows sent, width)"""
        return self.arrays.take(rows, self.send_rows)

    def begin(self, rows: Any, factors: Any = None) -> tuple[Exchange | None, Any]:
        """Return the running exchange (None on one rank), and the tensor that will hold the halo rows.

        Args:
            rows: (num_owned, width)
            factors: What each row that is sent is multiplied by, before it is rounded. (rows sent, 1)
        """
        if len(self.send_counts) == 1:
            return None, None
        sent = self.arrays.pack(rows, self.send_rows, factors)
        received = self.arrays.empty((sum(self.receive_counts), rows.shape[1]), sent)
        exchange = self.collectives.exchange(sent, self.send_counts, received, self.receive_counts)
        self.meter.received(received.nbytes)
        return exchange, received

    def wait(self, exchange: Exchange) -> None:
        """Wait for what `begin` began."""
        with self.meter.communication():
            exchange.wait()
