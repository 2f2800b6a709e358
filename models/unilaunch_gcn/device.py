"""The GCN on a device: features, halo rows and activations stay in its memory, whichever framework has them.

What follows a layer's sums (bias, ReLU, dropout) is their epilogue: torch applies it in the same pass over them.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.aggregation import Aggregation, ColumnEdges, ColumnSwitch, DiagonalScaling
from unilaunch_gcn.host import first_features
from unilaunch_gcn.layers import Mode, NetworkConfig, TrainingEpoch, initial_weights
from unilaunch_gcn.network import Network, Pass
from unilaunch_gcn.objective import Objective, objective_of
from unilaunch_gcn.tensors import Tensors
from unilaunch_graph.arrays import Floats, FloatType, Ids, Indices, Rows
from unilaunch_graph.data.graph import Features
from unilaunch_graph.dropout import least_kept, scale_of_kept, stream_keys
from unilaunch_graph.exchange.meter import HostWatch, Meter, Watch
from unilaunch_graph.operators.halo_edges import Finish
from unilaunch_graph.partition.part import Part


class Dropout(NamedTuple):
    """Portable dropout of rows, or of a matrix's entries, in one epoch and layer; its mask is made where it is needed.

    Attributes:
        nodes: Global id of each row. (rows,) int64 tensor; of MindSpore an array
        keys: The mask's `dropout.stream_keys`. torch's device reads them when it works, not when the work is queued, so
            that a recorded step serves every epoch. (2,) int64 tensor; of MindSpore two numbers
        probability: Share that is dropped, below 1.
    """

    nodes: Any
    keys: Any
    probability: float

    @property
    def least(self) -> int:
        """The least hash that is kept."""
        return least_kept(self.probability)

    @property
    def scale(self) -> float:
        """What is kept is multiplied by this."""
        return scale_of_kept(self.probability)


class Epilogue(NamedTuple):
    """What becomes of sums on a device before they are stored, in this order; None and False leave a step out.

    Attributes:
        plus: Added. (rows, width)
        bias: Added to each row, in the type of the sums. (width,)
        relu: Negative numbers become 0.
        dropout: Dropout of the result.
    """

    plus: Any = None
    bias: Any = None
    relu: bool = False
    dropout: Dropout | None = None


class Masks:
    """The dropout of each layer in an epoch.

    Args:
        config: What is trained.
        nodes: Global ids of the owned nodes.
    """

    def __init__(self, config: NetworkConfig, nodes: Any) -> None:
        self.config, self.nodes = config, nodes
        self.keys: Any = None

    def start_epoch(self, epoch: int) -> None:
        """Take an epoch's keys."""
        self.keys = self._keys(epoch)

    def of_layer(self, depth: int) -> Dropout:
        """Return the dropout of the rows that enter layer *depth*, in the epoch that has been started."""
        return Dropout(self.nodes, self.keys[depth], self.config.dropout)

    def _keys(self, epoch: int) -> list[tuple[int, int]]:
        return [stream_keys(self.config.seed, epoch, depth) for depth in range(len(self.config.layers))]


class DeviceTensors(Tensors):
    """A framework on a device: operators take and return tensors of the device.

    Attributes:
        numeric: The framework's functions under numpy's names.
        summed: Type of what is summed over ranks.

    Args:
        is_bfloat16: Products are rounded to bfloat16.
    """

    numeric: Any
    summed: np.dtype[Any]

    def __init__(self, *, is_bfloat16: bool = False) -> None:
        self.is_bfloat16 = is_bfloat16

    def agree(self, collectives: Collectives) -> None:
        """Choose one way of computing for all ranks; all must call it. A framework with one way does nothing."""

    def rows(self, array: Any) -> Any:
        """Return an array in the type in which the device keeps rows."""
        return self.rounded(self.tensor(array))

    def rounded(self, rows: Any) -> Any:
        """Return tensors in the type in which the device keeps rows: here their own."""
        return rows

    @abstractmethod
    def product(self, rows: Any, weight: Any) -> Any:
        """Return rows @ weight, in the precision of the training."""

    @abstractmethod
    def finish(self, rows: Any, epilogue: Epilogue, aggregation: Any = None, *, is_wide: bool = False) -> Any:
        """Return epilogue(A_hat @ rows), differentiable once by *rows*, *plus* and *bias*.

        Args:
            rows: (num_owned, width)
            epilogue: What becomes of the sums.
            aggregation: A_hat; None: *rows* are the sums.
            is_wide: The result has the type of the weights, not that in which rows are kept.
        """

    @abstractmethod
    def entry_mask(
        self, rows: NDArray[Any], columns: NDArray[Any], width: int, dtype: FloatType
    ) -> Callable[[Dropout], Any]:
        """Return what makes a mask of single features from their dropout.

        Args:
            rows: Local row of each entry. (entries,)
            columns: Column of each entry. (entries,)
            width: Columns of the features.
            dtype: Type of the mask.
        """

    @abstractmethod
    def empty(self, shape: tuple[int, int], like: Any) -> Any:
        """Return an array of a shape, with the type of another array; its values are undefined."""

    @abstractmethod
    def take(self, rows: Any, places: Any) -> Any:
        """Return the rows at *places*, a tensor of int64."""

    @abstractmethod
    def sparse(self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]) -> Any:
        """Return a CSR matrix whose `matmat(rows, values=None)` is the product, also with other values."""

    def sparse_features(self, features: sp.csr_array) -> "SparseFeatures":
        """Return sparse features on the device."""
        return SparseFeatures(features, self)

    @abstractmethod
    def buffer(self, weights: Floats) -> Any:
        """Return the weights as Adam changes them: on the device, or where that is better, on the host."""

    @abstractmethod
    def message(self, value: Any, gradients: Sequence[Any]) -> Any:
        """Return one flat tensor: the value, a zero, and the gradients."""

    @abstractmethod
    def local(self, message: Any) -> Any:
        """Return a message as the kind of array that `buffer` returns."""

    def watch(self) -> Watch:
        """Return what measures communication."""
        return HostWatch()

    def masks(self, config: NetworkConfig, nodes: NDArray[np.int64]) -> Masks:
        """Return the dropout of a part's rows."""
        return Masks(config, nodes)

    def network(
        self, config: NetworkConfig, part: Part, objective: Objective, aggregate: Aggregation
    ) -> "DeviceNetwork":  # fmt: skip
        """Return the network of a part."""
        return DeviceNetwork(config, part, objective, self, aggregate)


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
        sent = self.arrays.take(rows, self.send_rows)
        sent = self.arrays.rounded(sent if factors is None else sent * factors)
        received = self.arrays.empty((sum(self.receive_counts), rows.shape[1]), sent)
        exchange = self.collectives.exchange(sent, self.send_counts, received, self.receive_counts)
        self.meter.received(received.nbytes)
        return exchange, received

    def wait(self, exchange: Exchange) -> None:
        """Wait for what `begin` began."""
        with self.meter.communication():
            exchange.wait()


class DenseFeatures:
    """X, dense, on a device.

    Args:
        rows: X. (num_owned, num_features)
        tensors: The framework on the device.
    """

    def __init__(self, rows: Any, tensors: DeviceTensors) -> None:
        self.rows, self.tensors = rows, tensors

    def dropped(self, dropout: Dropout | None) -> Any:
        """Return X after dropout."""
        return self.rows if dropout is None else self.tensors.finish(self.rows, Epilogue(dropout=dropout))

    def matmat(self, rows: Any, dropout: Dropout | None) -> Any:
        """Return X @ W. (num_owned, width)"""
        return self.dropped(dropout) @ self.tensors.rounded(rows)

    def rmatmat(self, rows: Any, dropout: Dropout | None) -> Any:
        """Return X.T @ G. (num_features, width)"""
        return self.dropped(dropout).T @ rows


class SparseFeatures:
    """X, sparse, on a device.

    Args:
        features: X.
        tensors: The framework on the device.
    """

    def __init__(self, features: sp.csr_array, tensors: DeviceTensors) -> None:
        self.tensors, transposed = tensors, features.T.tocsr()
        self.matrix, self.transposed = (
            tensors.sparse(x.indptr, x.indices, x.data, x.shape) for x in (features, transposed)
        )
        self.make_masks(features, transposed)

    def make_masks(self, features: sp.csr_array, transposed: sp.csr_array) -> None:
        """Keep where the entries are, which their dropout depends on."""
        entries = features.tocoo().coords, transposed.tocoo().coords[::-1]
        self.mask, self.transposed_mask = (
            self.tensors.entry_mask(rows, columns, features.shape[1], features.dtype) for rows, columns in entries
        )

    def matmat(self, rows: Any, dropout: Dropout | None) -> Any:
        """Return X @ W. (num_owned, width)"""
        values = self.matrix.values * self.mask(dropout) if dropout else None
        return self.tensors.rounded(self.matrix.matmat(rows, values))

    def rmatmat(self, rows: Any, dropout: Dropout | None) -> Any:
        """Return X.T @ G. (num_features, width)"""
        values = self.transposed.values * self.transposed_mask(dropout) if dropout else None
        return self.transposed.matmat(rows, values)


class Dropped:
    """The features with the dropout of an epoch, as a linear operator on weights.

    Args:
        features: X.
        dropout: The dropout; None: nothing is dropped.
    """

    def __init__(self, features: Any, dropout: Dropout | None) -> None:
        self.features, self.dropout = features, dropout

    def matmat(self, rows: Any) -> Any:
        """Return X @ W, in the type in which rows are kept."""
        self.kind = rows.dtype
        return self.features.matmat(rows, self.dropout)

    def rmatmat(self, rows: Any) -> Any:
        """Return X.T @ G, in the type of the weights."""
        return self.features.rmatmat(rows, self.dropout).to(self.kind)


class DeviceFeatures:
    """What the first layer starts from.

    Args:
        config: What is trained.
        part: This rank's part.
        aggregate: A_hat.
        tensors: The framework on the device.
    """

    def __init__(self, config: NetworkConfig, part: Part, aggregate: Aggregation, tensors: DeviceTensors) -> None:
        self.aggregate, self.tensors, self.order = aggregate, tensors, config.layers[0].order

        def multiply(rows: Rows) -> Rows:
            product: Rows = tensors.array(tensors.rounded(aggregate.matmat(tensors.rows(rows)))).astype(rows.dtype)
            return product

        features, aggregated = first_features(config, part, multiply)
        self.own = self._load(features)
        self.aggregated: Any = None
        if aggregated is not None:
            self.aggregated = self.own if aggregated is features else self._load(aggregated)

    def operators(self, dropout: Dropout | None) -> tuple[LinearOperator, LinearOperator]:
        """Return what *weight* and *self_weight* of the first layer are multiplied by, as `FirstLayer.operators`.

        Args:
            dropout: Of the features; None: nothing is dropped.
        """
        own = Dropped(self.own, dropout)
        if self.aggregated:
            return Dropped(self.aggregated, None), own
        if self.order != "aggregation first":
            return own, own
        rows = self.aggregate.matmat(self.own.dropped(dropout))
        return Dropped(DenseFeatures(self.tensors.rounded(rows), self.tensors), None), own

    def _load(self, features: Features) -> Any:
        if isinstance(features, sp.csr_array):
            return self.tensors.sparse_features(features)
        return DenseFeatures(self.tensors.rows(features), self.tensors)


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
        self.aggregation = aggregate
        self.flat = tensors.buffer(initial_weights(config.layers, config.seed, config.dtype))
        self.targets = tensors.tensor(objective.targets(np.asarray(part.labels), config.dtype))
        self.share = tensors.tensor((part.loss_share() / objective.values_per_node).astype(config.dtype)[:, None])
        self.masks = tensors.masks(config, part.owned)
        self.nothing = tensors.tensor(np.zeros(2 + len(self.flat) if not part.num_owned else 0, tensors.summed))
        self.value: Any = None
        self.first_layer = DeviceFeatures(config, part, aggregate, tensors)

    @override
    def forward(self, mode: Mode) -> Pass:
        return DevicePass(self, drops=self.config.drops(mode))

    @override
    def gradient(self, epoch: int) -> Any:
        self.masks.start_epoch(epoch)
        return self.queue_gradient()

    def queue_gradient(self) -> Any:
        """Return what `gradient` does, of the epoch that has been started in `masks`; reads nothing of the host."""
        gradients = self._gradients(_STARTED, self._gradient_of)
        if not self.part.num_owned:  # MindSpore's product over no rows is whatever the memory held
            return self.nothing + 0.0  # a copy, into which others' are summed
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


#: The epoch that has been started: its number is in the masks' keys.
_STARTED = TrainingEpoch(0)


class DevicePass(Pass):
    """A forward pass on a device.

    Args:
        network: The network.
        drops: With the dropout of the epoch that has been started.
    """

    def __init__(self, network: DeviceNetwork, *, drops: bool) -> None:
        super().__init__(network, network.first_layer.operators(network.masks.of_layer(0) if drops else None))
        self.network, self.drops, self.device = network, drops, network.tensors

    @override
    def aggregate(self, depth: int, rows: Any) -> Any:
        return self.device.finish(rows, Epilogue(), self.network.aggregation)

    @override
    def product(self, rows: Any, weight: Any) -> Any:
        return self.device.product(rows, weight)

    @override
    def activated(self, depth: int, rows: Any) -> Any:
        return self.device.finish(rows, Epilogue(relu=True))

    @override
    def dropped(self, depth: int, rows: Any) -> Any:
        return self.device.finish(rows, Epilogue(dropout=self._dropout(depth)))

    @override
    def entering(self, depth: int, rows: Any) -> Any:
        return self.device.finish(rows, Epilogue(relu=True, dropout=self._dropout(depth)))

    @override
    def sums(self, depth: int, own: Mapping[str, Any], entering: Any) -> Any:
        return self._finished(depth, own, entering, Epilogue(), is_wide=True)

    @override
    def entering_sums(self, depth: int, own: Mapping[str, Any], entering: Any) -> Any:
        then = Epilogue(relu=True, dropout=self._dropout(depth + 1))
        return self._finished(depth, own, entering, then)

    def _finished(
        self, depth: int, own: Mapping[str, Any], entering: Any, then: Epilogue, *, is_wide: bool = False
    ) -> Any:  # fmt: skip
        product, itself = self.terms(depth, own, entering)
        aggregation = self.network.aggregation if self.layers[depth].order == "product first" else None
        then = then._replace(plus=itself, bias=own.get("bias"))
        return self.device.finish(product, then, aggregation, is_wide=is_wide)

    def _dropout(self, depth: int) -> Dropout | None:
        """Return the dropout of the rows that enter layer *depth*, if there is any."""
        return self.network.masks.of_layer(depth) if self.drops else None


def device_network(
    config: NetworkConfig, part: Part, tensors: DeviceTensors, collectives: Collectives, meter: Meter
) -> DeviceNetwork:
    """Return the network on a device, over collectives on the device's tensors; all ranks must call it."""
    tensors.agree(collectives)
    meter.watch = tensors.watch()
    edges = edges_on_device(part, config.dtype, tensors, collectives, meter)
    aggregate = Aggregation(edges, DiagonalScaling.of(part, config.conv, config.dtype, tensors.tensor))
    return tensors.network(config, part, objective_of(part), aggregate)
