"""What the first layer starts from on a device with torch: the features, as operators on its weights."""

from typing import cast

import numpy as np
import scipy.sparse as sp
import torch

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.features import aggregate_features
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.torch_device_tensors import TorchDeviceTensors
from unilaunch_gcn.torch_dropout import DeviceMasks
from unilaunch_gcn.torch_sparse import (
    DenseFeatures,
    Dropped,
    Features,
    FusedSparseFeatures,
    SparseFeatures,
    on_arrays,
)
from unilaunch_graph.arrays import Floats
from unilaunch_graph.partition.part import Part


class TorchFeatures:
    """What the first layer starts from.

    Args:
        config: What is trained.
        part: This rank's part.
        aggregate: A_hat.
        tensors: torch on the device.
        masks: The dropout masks.
    """

    def __init__(
        self, config: NetworkConfig, part: Part, aggregate: Aggregation, tensors: TorchDeviceTensors, masks: DeviceMasks
    ) -> None:
        features = part.features.astype(config.dtype, copy=False)
        self.aggregate, self.tensors, self.masks, self.order = aggregate, tensors, masks, config.layers[0].order
        self.kind = tensors.kind(config.dtype)
        if isinstance(features, sp.csr_array) and self.order == "aggregation first":
            features = features.toarray()  # it is narrower than the hidden layer: small
        self.aggregated: Features | None = None
        if self.order == "aggregated once":
            self.aggregated = self._load(aggregate_features(on_arrays(aggregate, tensors, self.kind), features))
        needs_own = any(parameter.name == "self_weight" for parameter in config.layers[0].parameters)
        self.own = self.aggregated if self.aggregated and not needs_own else self._load(features)

    def operators(self, epoch: int | None) -> tuple[LinearOperator, LinearOperator]:
        """Return what *weight* and *self_weight* of the first layer are multiplied by, as `FirstLayer.operators`.

        Args:
            epoch: With the dropout of this epoch, which has been started; None without dropout.
        """
        dropout = None if epoch is None else self.masks.of_layer(0)
        own = Dropped(self.own, dropout)
        if self.aggregated:
            return Dropped(self.aggregated, None), own
        if self.order != "aggregation first":
            return own, own
        rows = cast("DenseFeatures", self.own).dropped(dropout)
        return Dropped(DenseFeatures(self.aggregate.matmat(rows), self.tensors.passes), None), own

    def _load(self, features: Floats | sp.csr_array) -> Features:
        if isinstance(features, sp.csr_array):
            if kernels := self.tensors.kernels:
                return FusedSparseFeatures(features, self.tensors, kernels.multiply, self.kind)
            return SparseFeatures(features, self.tensors, self.masks, self.kind)
        rows = (
            torch.from_numpy(np.array(features, order="C")).to(self.kind).to(self.tensors.device)
        )  # rounded on the host
        return DenseFeatures(rows, self.tensors.passes)
