"""The GCN on the host: a framework's derivatives over the operators that all frameworks share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.attention import GraphAttention
from unilaunch_gcn.features import HostFeatures, SparseFeatures
from unilaunch_gcn.first_layer import FirstLayer
from unilaunch_gcn.functions import Activation, Dropout
from unilaunch_gcn.fused_layers import FusedLayer, LayerPlan, can_fuse
from unilaunch_gcn.network import Network, initial_weights, views
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.objective import Objective, TrainingLoss
from unilaunch_gcn.pruning import PrunedAggregation, PrunedLayer
from unilaunch_gcn.tensors import Operation, Tensors
from unilaunch_graph.arrays import Floats, HostFunction
from unilaunch_graph.dropout import MaskWords, mask_words, scale_of_kept, stream_keys
from unilaunch_graph.kernels.choice import Kernels, Products
from unilaunch_graph.partition.part import Part


@dataclass(frozen=True, slots=True)
class Problem:
    """What a network on the host is made from: a part, and the operators that the frameworks share.

    Attributes:
        config: What is trained.
        part: This rank's part.
        objective: The loss and its metrics.
        aggregate: A_hat over all parts, or attention.
        first_layer: The features.
        kernels: What activates and drops out.
        products: What multiplies.
        pruned: The layers of a training epoch; none: each has all owned rows.
    """

    config: NetworkConfig
    part: Part
    objective: Objective
    aggregate: Aggregation | GraphAttention
    first_layer: FirstLayer
    kernels: Kernels
    products: Products
    pruned: Sequence[PrunedLayer] = ()

    def mask(self, epoch: int, depth: int) -> MaskWords:
        """Return the dropout mask of the rows that enter layer *depth*. (rows, width_in)"""
        config = self.config
        nodes = self.part.owned[self.pruned[depth].entering] if self.pruned else self.part.owned
        keys = stream_keys(config.seed, epoch, depth)
        return mask_words(nodes, config.layers[depth].width_in, keys, config.dropout)

    @property
    def trained_part(self) -> Part:
        """The part with the labels and the split of the nodes whose scores a training epoch computes."""
        if not self.pruned:
            return self.part
        scored = self.pruned[-1].leaving
        return replace(self.part, labels=self.part.labels[scored], split=self.part.split[scored])


class HostNetwork(Network):
    """The GCN of one rank on the host.

    Args:
        problem: The part, and the operators on it.
        tensors: The framework.
    """

    def __init__(self, problem: Problem, tensors: Tensors) -> None:
        config = problem.config
        self.problem = problem
        tensors.host_kernels, tensors.host_products = problem.kernels, problem.products
        self.flat: Floats = initial_weights(config.layers, config.seed, config.dtype)
        self.loss, self.value = TrainingLoss(problem.objective, problem.trained_part, config.dtype), 0.0
        super().__init__(config, problem.part, problem.objective, tensors, problem.aggregate)
        self.pruned = [
            (tensors.operation(layer.aggregate), tensors.operation(layer.selection)) for layer in problem.pruned
        ]
        self.first_layers = problem.first_layer, problem.first_layer
        if problem.pruned:
            self.first_layers = problem.first_layer, problem.first_layer.pruned(problem.pruned[0])

    @override
    def gradient(self, epoch: int) -> NDArray[np.float64]:
        self.epoch = epoch
        gradients = self.gradients(views(self.flat, self.layers))
        arrays = [self.tensors.array(gradient).ravel() for gradient in gradients]
        return np.concatenate([[self.value, 0.0], *arrays], dtype=np.float64)

    @override
    def _forward(self, weights: Sequence[Any]) -> Any:
        if not can_fuse(self.layers):
            return super()._forward(weights)
        rows: list[Any] = []
        for depth, weight in enumerate(weights):
            rows = [self.tensors.call(self._fused(depth), *rows, weight)]
        return rows[0]

    def _fused(self, depth: int) -> FusedLayer:
        problem, layer, epoch = self.problem, self.layers[depth], self._dropout_epoch
        words = None if epoch is None or layer.is_last else problem.mask(epoch, depth + 1)
        scale = 1.0 if epoch is None else scale_of_kept(self.config.dropout)
        below = self._sparse(depth - 1) if depth else None
        before = below.back_factors if below else None
        plan = LayerPlan(self._sparse(depth), relu=not layer.is_last, words=words, scale=scale, before=before)
        constant = None if depth else cast("HostFeatures | SparseFeatures", self._first_layer()[0])
        return FusedLayer(plan, problem.kernels, problem.products, constant)

    def _sparse(self, depth: int) -> Aggregation | PrunedAggregation | None:
        """Return what a plain layer aggregates with; None: its features have been aggregated."""
        if self.layers[depth].order != "product first":
            return None
        is_pruned = self.pruned and self.epoch is not None
        aggregate = self.problem.pruned[depth].aggregate if is_pruned else self.problem.aggregate
        return cast("Aggregation | PrunedAggregation", aggregate)

    @override
    def _first_layer(self) -> tuple[LinearOperator, LinearOperator]:
        return self.first_layers[self.epoch is not None].operators(self.epoch)

    @override
    def _aggregation(self, depth: int) -> Operation:
        return self.pruned[depth][0] if self.pruned and self.epoch is not None else self.aggregate

    @override
    def _leaving(self, depth: int, rows: Any) -> Any:
        return self.pruned[depth][1](rows) if self.pruned and self.epoch is not None else rows

    @override
    def _attention(self, depth: int) -> HostFunction:
        return cast("GraphAttention", self.problem.aggregate).of_layer(depth, self.epoch)

    @override
    def _dropped(self, depth: int, rows: Any, *, relu: bool) -> Any:
        mask, kernels = self.problem.mask(self.epoch or 0, depth), self.problem.kernels
        return self.tensors.call(Activation(kernels, mask) if relu else Dropout(kernels, mask), rows)

    @override
    def _gradient_of(self, logits: Any) -> Any:
        scores = self.tensors.array(logits)
        if self.layers[-1].heads:
            scores = scores.copy()  # the derivative of attention needs its result, and the loss overwrites this
        self.value, gradient = self.loss.value_and_gradient(scores)
        return self.tensors.tensor(gradient)
