"""The GCN on a device: features, halo rows and activations stay in its memory, whichever framework has them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.aggregation import Aggregation, ColumnEdges, ColumnSwitch, DiagonalScaling
from unilaunch_gcn.epilogue import Epilogue
from unilaunch_gcn.layers import Evaluation, Mode, NetworkConfig, TrainingEpoch, initial_weights
from unilaunch_gcn.network import EPSILON, Network, Pass
from unilaunch_gcn.objective import Objective, objective_of
from unilaunch_gcn.tensors import DeviceTensors, Masks
from unilaunch_graph.arrays import Floats, FloatType, Ids, Indices
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.operators.halo_edges import Finish
from unilaunch_graph.partition.part import Part

if TYPE_CHECKING:
    from unilaunch_gcn.torch_device import TorchDeviceTensors


def edges_on_device(
    part: Part, dtype: FloatType, arrays: DeviceTensors, collectives: Collectives, meter: Meter
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
        values = weights.astype(dtype) if len(weights) else np.ones(len(indices), dtype)
        return arrays.sparse(indptr, indices, values, shape)

    if whole := part.adjacency:
        switch = ColumnSwitch(part, whole, collectives, meter, arrays)
        every = matrix(whole.indptr, whole.indices, whole.weights, (part.num_nodes, part.num_nodes))
        return ColumnEdges(switch, every.matmat, every.matmat)  # W is symmetric: a device takes no other
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

    def __init__(self, part: Part, collectives: Collectives, meter: Meter, arrays: DeviceTensors) -> None:
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


class DenseFeatures:
    """X @ W for a dense X on a device."""

    def __init__(self, features: Any) -> None:
        self.features = features

    def matmat(self, rows: Any) -> Any:
        """Return X @ W. (num_owned, width)"""
        return self.features @ rows

    def rmatmat(self, rows: Any) -> Any:
        """Return X.T @ G. (num_features, width)"""
        return self.features.T @ rows


class DeviceSparseFeatures:
    """X @ W for a sparse X on a device.

    Args:
        features: X.
        tensors: The framework on the device.
        masks: The dropout masks.
    """

    def __init__(self, features: sp.csr_array, tensors: DeviceTensors, masks: Masks) -> None:
        self.tensors = tensors
        places = features.copy()
        places.data = np.arange(features.nnz)
        order: NDArray[np.int64] = places.T.tocsr().data
        transposed = features.T.tocsr()
        self.matrix = tensors.sparse(features.indptr, features.indices, features.data, features.shape)
        self.transposed = tensors.sparse(transposed.indptr, transposed.indices, transposed.data, transposed.shape)
        self.order = tensors.tensor(order.astype(np.int64))
        rows = np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))
        self.mask = masks.of_entries(rows, features.indices, features.shape[1])
        self.values: tuple[Any, Any] = (None, None)

    def dropped(self, mode: Mode) -> "DeviceSparseFeatures":
        """Return the features, dropped out anew in a training epoch."""
        self.values = (None, None)
        if isinstance(mode, TrainingEpoch):
            values = self.matrix.values * self.mask(mode.number)
            self.values = values, self.tensors.take(values, self.order)
        return self

    def matmat(self, rows: Any) -> Any:
        """Return X @ W. (num_owned, width)"""
        return self.matrix.matmat(rows, self.values[0])

    def rmatmat(self, rows: Any) -> Any:
        """Return X.T @ G. (num_features, width)"""
        return self.transposed.matmat(rows, self.values[1])


class DeviceNetwork(Network):
    """The GCN of one rank on a device.

    Args:
        config: What is trained.
        part: This rank's part.
        objective: The loss and its metrics.
        tensors: The framework on the device.
        aggregate: A_hat over all parts, on the device.
    """

    tensors: DeviceTensors

    def __init__(
        self, config: NetworkConfig, part: Part, objective: Objective, tensors: DeviceTensors, aggregate: Aggregation
    ) -> None:
        super().__init__(config, part, objective, tensors)
        self.flat = tensors.buffer(initial_weights(config.layers, config.seed, config.dtype))
        self.targets = tensors.tensor(objective.targets(np.asarray(part.labels), config.dtype))
        self.share = tensors.tensor((part.loss_share() / objective.values_per_node).astype(config.dtype)[:, None])
        self.masks = tensors.masks(config.dropout, config.seed, part.owned, config.dtype, len(config.layers))
        self.aggregate = tensors.operation(aggregate)
        self.epsilon = tensors.tensor(np.full((1, 1), EPSILON, config.dtype))
        self.value: Any = None
        self.first_layer = self._load_features(aggregate)

    def _load_features(self, aggregate: Aggregation) -> Any:
        return DeviceFirstLayer(self.config, self.part, aggregate, self.tensors, self.masks)

    @override
    def forward(self, mode: Mode) -> Pass:
        return DevicePass(self, mode if self.config.dropout else Evaluation())

    @override
    def gradient(self, epoch: int) -> Any:
        gradients = self._gradients(TrainingEpoch(epoch), self._gradient_of)
        if not self.part.num_owned:  # MindSpore's product over no rows is whatever the memory held
            return self.tensors.tensor(np.zeros(2 + len(self.flat), self.tensors.summed))
        return self.tensors.message(self.value, gradients)

    @override
    def evaluate(self) -> Any:
        return self.shared(super().evaluate().astype(self.tensors.summed))

    @override
    def local(self, gradient: Any) -> Any:
        return self.tensors.local(gradient)

    @override
    def host(self, buffer: Any) -> Floats:
        return self.tensors.array(buffer)

    @override
    def shared(self, numbers: Floats) -> Any:
        return self.tensors.tensor(numbers)

    def _gradient_of(self, scores: Any) -> Any:
        """Return the derivative of the loss, and note the loss; nodes not trained on have a share of 0 in it."""
        if not self.part.num_owned:
            return scores * 0.0
        losses, gradient = self.objective.losses(scores, self.targets, self.tensors.numeric)
        self.value = (losses * self.share).sum()
        return gradient * self.share


class DevicePass(Pass):
    """A forward pass on a device, in the framework's operations.

    Args:
        network: The network.
        mode: What it is for; an evaluation where nothing is dropped.
    """

    def __init__(self, network: DeviceNetwork, mode: Mode) -> None:
        super().__init__(
            network.layers, network.first_layer.operators(mode), network.tensors, network.epsilon
        )  # fmt: skip
        self.network, self.mode, self.device = network, mode, network.tensors

    @override
    def aggregate(self, depth: int, rows: Any) -> Any:
        return self.network.aggregate(rows)

    @override
    def product(self, rows: Any, weight: Any) -> Any:
        return self.device.product(rows, weight)

    @override
    def activated(self, depth: int, rows: Any) -> Any:
        return self.device.relu(rows)

    @override
    def dropped(self, depth: int, rows: Any) -> Any:
        if not isinstance(self.mode, TrainingEpoch):
            return rows
        return rows * self.network.masks.rows(self.mode.number, depth, self.layers[depth].width_in)


class DeviceFirstLayer:
    """The features on a device; the same operators as `features.FirstLayer`.

    Args:
        config: What is trained.
        part: This rank's part.
        aggregate: A_hat.
        tensors: The framework on the device.
        masks: The dropout masks.
    """

    def __init__(
        self, config: NetworkConfig, part: Part, aggregate: Aggregation, tensors: DeviceTensors, masks: Masks
    ) -> None:
        self.aggregate, self.masks, self.order = aggregate, masks, config.layers[0].order
        features = part.features.astype(config.dtype)
        self.sparse: DeviceSparseFeatures | None = None
        if isinstance(features, sp.csr_array) and self.order == "product first":
            self.sparse = DeviceSparseFeatures(features, tensors, masks)
            return
        self.dense = tensors.tensor(features.toarray() if isinstance(features, sp.csr_array) else np.array(features))
        self.aggregated = aggregate.matmat(self.dense) if self.order == "aggregated once" else None

    def operators(self, mode: Mode) -> tuple[LinearOperator, LinearOperator]:
        """Return what *weight* and *self_weight* of the first layer are multiplied by, as `FirstLayer.operators`."""
        if self.sparse:
            return (features := self.sparse.dropped(mode)), features
        own = self.dense
        if isinstance(mode, TrainingEpoch):
            own = own * self.masks.rows(mode.number, 0, self.dense.shape[1])
        weighted = own if self.aggregated is None else self.aggregated
        if self.order == "aggregation first":
            weighted = self.aggregate.matmat(own)
        return DenseFeatures(weighted), DenseFeatures(own)


def device_network(
    config: NetworkConfig, part: Part, tensors: DeviceTensors, collectives: Collectives, meter: Meter
) -> DeviceNetwork:
    """Return the network on a device, over collectives on the device's tensors; all ranks must call it."""
    tensors.agree(collectives)
    meter.watch = tensors.watch()
    edges = edges_on_device(part, config.dtype, tensors, collectives, meter)
    aggregate = Aggregation(edges, DiagonalScaling.of(part, config.conv, config.dtype, tensors.tensor))
    if tensors.framework == "torch":
        from unilaunch_gcn.torch_network import TorchDeviceNetwork

        return TorchDeviceNetwork(config, part, objective_of(part), cast("TorchDeviceTensors", tensors), aggregate)
    return DeviceNetwork(config, part, objective_of(part), tensors, aggregate)
