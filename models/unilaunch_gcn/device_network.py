"""The GCN on a device: features, halo rows and activations stay in its memory."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from typing_extensions import override

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.features import DenseFeatures, DeviceSparseFeatures
from unilaunch_gcn.masks import Masks
from unilaunch_gcn.network import Network, initial_weights, views
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.objective import Objective
from unilaunch_gcn.tensors import DeviceTensors
from unilaunch_graph.arrays import Floats
from unilaunch_graph.partition.part import Part


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
        self.flat = tensors.buffer(initial_weights(config.layers, config.seed, config.dtype))
        self.targets = tensors.tensor(objective.targets(np.asarray(part.labels), config.dtype))
        self.share = tensors.tensor((part.loss_share() / objective.values_per_node).astype(config.dtype)[:, None])
        self.masks = tensors.masks(config.dropout, config.seed, part.owned, config.dtype, len(config.layers))
        self.value: Any = None
        super().__init__(config, part, objective, tensors, aggregate)
        self.first_layer = self._load_features(config, part, aggregate)

    def _load_features(self, config: NetworkConfig, part: Part, aggregate: Aggregation) -> Any:
        return DeviceFirstLayer(config, part, aggregate, self.tensors, self.masks)

    @override
    def gradient(self, epoch: int) -> Any:
        self.epoch = epoch
        gradients = self.gradients(views(self.flat, self.layers))
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

    @override
    def _first_layer(self) -> tuple[LinearOperator, LinearOperator]:
        operators: tuple[LinearOperator, LinearOperator] = self.first_layer.operators(self._dropout_epoch)
        return operators

    @override
    def _dropped(self, depth: int, rows: Any, *, relu: bool) -> Any:
        mask = self.masks.rows(self.epoch or 0, depth, self.layers[depth].width_in)
        return (self.tensors.relu(rows) if relu else rows) * mask

    @override
    def _gradient_of(self, logits: Any) -> Any:
        """Return the derivative of the loss; nodes that are not trained on have a share of 0 in it."""
        if not self.part.num_owned:
            return logits * 0.0
        losses, gradient = self.objective.losses(logits, self.targets, self.tensors.numeric)
        self.value = (losses * self.share).sum()
        return gradient * self.share


class DeviceFirstLayer:
    """The features on a device; the same operators as `first_layer.FirstLayer`.

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

    def operators(self, epoch: int | None) -> tuple[LinearOperator, LinearOperator]:
        """Return what the first layer's weights are multiplied by.

        Args:
            epoch: Which epoch's dropout; None without dropout.

        Returns:
            What *weight* is, in the layer's order, and what *self_weight* is: X.
        """
        if self.sparse:
            return (features := self.sparse.dropped(epoch)), features
        own = self.dense if epoch is None else self.dense * self.masks.rows(epoch, 0, self.dense.shape[1])
        weighted = own if self.aggregated is None else self.aggregated
        if self.order == "aggregation first":
            weighted = self.aggregate.matmat(own)
        return DenseFeatures(weighted), DenseFeatures(own)
