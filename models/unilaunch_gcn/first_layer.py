"""What the first layer starts from: the owned features, dropped out anew in each epoch, as linear operators on W."""

from copy import copy

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.attention import GraphAttention
from unilaunch_gcn.features import HostFeatures, SparseFeatures, aggregate_features
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.pruning import PrunedAggregation, PrunedLayer, Selection
from unilaunch_graph.arrays import Floats
from unilaunch_graph.dropout import MaskWords, entry_mask, mask_words, stream_keys
from unilaunch_graph.kernels.choice import Kernels, Products
from unilaunch_graph.partition.part import Part


class FirstLayer:
    """The features of one part.

    Args:
        config: What is trained.
        part: The part.
        aggregate: A_hat, or attention.
        kernels: What drops out.
        products: What multiplies.
    """

    def __init__(
        self, config: NetworkConfig, part: Part, aggregate: Aggregation | GraphAttention, kernels: Kernels,
        products: Products,
    ) -> None:  # fmt: skip
        features = part.features.astype(config.dtype, copy=False)
        self.aggregate: Aggregation | GraphAttention | PrunedAggregation = aggregate
        self.config, self.nodes, self.kernels = config, part.owned, kernels
        self.order = config.layers[0].order
        if isinstance(features, sp.csr_array) and self.order == "aggregation first":
            features = features.toarray()  # it is narrower than the hidden layer: small
        self.aggregated = aggregate_features(aggregate.matmat, features) if self.order == "aggregated once" else None
        self.features, self.products = features, products
        self.leaving: Selection | None = None
        self.constant: dict[int, HostFeatures] = {}

    def pruned(self, layer: PrunedLayer) -> "FirstLayer":
        """Return the same features with the rows of a training epoch only.

        Args:
            layer: The rows.
        """
        made, entering = copy(self), layer.entering
        made.aggregate = layer.aggregate
        has_self_weight = any(parameter.name == "self_weight" for parameter in self.config.layers[0].parameters)
        if self.aggregated is not None:
            made.aggregated, entering = _rows(self.aggregated, layer.leaving), layer.leaving
        elif has_self_weight:
            made.leaving = layer.selection
        made.nodes = self.nodes[entering]
        if self.aggregated is None or has_self_weight:
            made.features = _rows(self.features, entering)
        return made

    def operators(self, epoch: int | None) -> tuple[LinearOperator, LinearOperator]:
        """Return what the first layer's weights are multiplied by; all ranks must call it.

        Args:
            epoch: Which epoch's dropout; None for evaluation, without dropout.

        Returns:
            What *weight* is, in the layer's order, and what *self_weight* is: X, the rows that leave the layer.
        """
        keys = None if epoch is None or not self.config.dropout else stream_keys(self.config.seed, epoch, 0)
        if keys and self.order == "product first" and not self.leaving and not isinstance(self.features, sp.csr_array):
            masked = HostFeatures(self.features, self.products, self._words(self.features, keys))
            return masked, masked
        own = self._dropped(self.features, keys) if keys else self.features
        weighted = own if self.aggregated is None else self.aggregated
        if self.order == "aggregation first":
            weighted = self.aggregate.matmat(own)
        return self._operator(weighted), self._operator(self.leaving.matmat(own) if self.leaving else own)

    def _dropped(self, features: Floats | sp.csr_array, keys: tuple[int, int]) -> Floats | sp.csr_array:
        if isinstance(features, sp.csr_array):
            rows = np.repeat(self.nodes, np.diff(features.indptr))
            mask = entry_mask(rows, features.indices, keys, self.config.dropout, features.dtype)
            return sp.csr_array((features.data * mask, features.indices, features.indptr), shape=features.shape)
        return self.kernels.drop_out(features, self._words(features, keys))

    def _words(self, features: Floats, keys: tuple[int, int]) -> MaskWords:
        return mask_words(self.nodes, features.shape[1], keys, self.config.dropout)

    def _operator(self, features: Floats | sp.csr_array) -> LinearOperator:
        if isinstance(features, sp.csr_array):
            return SparseFeatures(features)
        made = HostFeatures(features, self.products)
        if features is not self.features and features is not self.aggregated:
            return made
        if id(features) not in self.constant:
            self.constant[id(features)] = made  # it may hold them rounded
        return self.constant[id(features)]


def _rows(features: Floats | sp.csr_array, chosen: NDArray[np.int64]) -> Floats | sp.csr_array:
    """Return some rows; the array itself if they are all of them."""
    return features if len(chosen) == features.shape[0] else features[chosen]
