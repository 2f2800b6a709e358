"""The GCN on the host: a framework's derivatives over the operators that all frameworks share."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch_gcn.attention import GraphAttention
from unilaunch_gcn.first_layer import FirstLayer
from unilaunch_gcn.loss import Objective, TrainingLoss
from unilaunch_gcn.network import Network, initial_weights, views
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.tensors import Tensors
from unilaunch_graph.arrays import Floats, HostFunction
from unilaunch_graph.dropout import fill_mask, stream_keys
from unilaunch_graph.operators.aggregation import Aggregation, LinearOperator
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
    """

    config: NetworkConfig
    part: Part
    objective: Objective
    aggregate: Aggregation | GraphAttention
    first_layer: FirstLayer

    def mask(self, epoch: int, depth: int) -> Floats:
        """Return the dropout mask of the owned rows that enter layer *depth*. (num_owned, width_in)"""
        config = self.config
        out = np.empty((self.part.num_owned, config.layers[depth].width_in), config.dtype)
        fill_mask(out, self.part.owned, stream_keys(config.seed, epoch, depth), config.dropout)
        return out


class HostNetwork(Network):
    """The GCN of one rank on the host.

    Args:
        problem: The part, and the operators on it.
        tensors: The framework.
    """

    def __init__(self, problem: Problem, tensors: Tensors) -> None:
        config = problem.config
        self.problem = problem
        self.flat: Floats = initial_weights(config.layers, config.seed).astype(config.dtype)
        self.loss, self.value = TrainingLoss(problem.objective, problem.part, config.dtype), 0.0
        super().__init__(config, problem.part, problem.objective, tensors, problem.aggregate)

    @override
    def gradient(self, epoch: int) -> NDArray[np.float64]:
        self.epoch = epoch
        gradients = self.gradients(views(self.flat, self.layers))
        if not self.part.num_owned:
            return np.zeros(2 + len(self.flat))  # MindSpore's product over no rows is whatever the memory held
        arrays = (self.tensors.array(gradient).ravel() for gradient in gradients)
        return np.concatenate([[self.value, 0.0], *arrays], dtype=np.float64)

    @override
    def _first_layer(self) -> tuple[LinearOperator, LinearOperator]:
        return self.problem.first_layer.operators(self.epoch)

    @override
    def _attention(self, depth: int) -> HostFunction:
        return cast("GraphAttention", self.problem.aggregate).of_layer(depth)

    @override
    def _mask(self, depth: int) -> Any:
        return self.tensors.tensor(self.problem.mask(self.epoch or 0, depth))

    @override
    def _gradient_of(self, logits: Any) -> Any:
        scores = self.tensors.array(logits)
        if self.layers[-1].heads:
            scores = scores.copy()  # the derivative of attention needs its result, and the loss overwrites this
        self.value, gradient = self.loss.value_and_gradient(scores)
        return self.tensors.tensor(gradient)
