"""The GCN of one rank: it maps weights to gradient and scores. The rest of the training uses no tensors."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.linear import LinearOperator
from unilaunch.json_value import JsonValue
from unilaunch_gcn.convolution import EPSILON, Operations, outputs
from unilaunch_gcn.layers import Layer, Parameter, count_decayed, count_weights
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.objective import Objective
from unilaunch_gcn.steps import Steps
from unilaunch_gcn.tensors import Operation, Tensors
from unilaunch_graph.arrays import Floats, FloatType, HostFunction
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.part import Part

#: Weights that are drawn at a time.
_DRAWN = 1 << 16


def initial_weights(layers: Sequence[Layer], seed: int, dtype: FloatType) -> Floats:
    """Return the same weights on every rank and framework: matrices as Glorot and Bengio (AISTATS 2010, equation 16).

    Args:
        layers: The layers.
        seed: Seed of the weights.
        dtype: Type of the weights, which are drawn in float64 and rounded.

    Returns:
        Each layer's parameters, one after the other, in one flat buffer. (num_weights,)
    """
    weights = np.empty(count_weights(layers), dtype)
    for own, (depth, place, parameter) in zip(views(weights, layers), _places(layers), strict=True):
        _start(own.reshape(-1), parameter, np.random.Philox(key=seed, counter=[0, 0, place, depth]))
    return weights


def _places(layers: Sequence[Layer]) -> Iterator[tuple[int, int, Parameter]]:
    for depth, layer in enumerate(layers):
        for place, parameter in enumerate(layer.parameters):
            yield depth, place, parameter


def _start(weights: Floats, parameter: Parameter, bits: np.random.BitGenerator) -> None:
    """Write the first weights of a parameter, a part at a time: float64 of all would be twice as large as they are."""
    if parameter.start != "glorot":
        weights[:] = float(parameter.start == "ones")
        return
    bound, generator = np.sqrt(6.0 / sum(parameter.shape)), np.random.Generator(bits)
    for begin in range(0, len(weights), _DRAWN):
        part = weights[begin : begin + _DRAWN]
        part[:] = (2.0 * generator.random(len(part)) - 1.0) * bound


class Network(ABC):
    """The GCN of one rank, over a framework's tensors.

    Attributes:
        flat: All weights, layer after layer, as one buffer: a numpy array, or a tensor of the device. Who changes it
            changes the network. (num_weights,)

    Args:
        config: What is trained.
        part: This rank's part.
        objective: The loss and its metrics.
        tensors: The framework.
        aggregate: A_hat over all parts; of attention: owned rows to owned and halo rows.
    """

    flat: Any

    def __init__(
        self, config: NetworkConfig, part: Part, objective: Objective, tensors: Tensors, aggregate: LinearOperator
    ) -> None:
        self.config, self.layers, self.part, self.objective, self.tensors = (
            config,
            config.layers,
            part,
            objective,
            tensors,
        )
        self.aggregate: Operation = tensors.operation(aggregate)
        self.epoch: int | None = None
        count = sum(len(layer.parameters) for layer in self.layers)
        self.gradients = tensors.differentiate(self._forward, self._gradient_of, count)

    def adam(self, lr: float, decay: float) -> Adam:
        """Return an optimiser of the weights.

        Args:
            lr: Step size.
            decay: L2 factor.
        """
        return Adam(self.flat, self.flat * 0.0, lr, decay, count_decayed(self.layers))

    def steps(self, adam: Adam, collectives: Collectives, meter: Meter) -> Steps:
        """Return the steps of a training."""
        return Steps(self, adam, collectives, meter)

    def figures(self) -> dict[str, JsonValue]:
        """Return what only this kind of network can say of a training, for `result.json`."""
        return {}

    @abstractmethod
    def gradient(self, epoch: int) -> Any:
        """Return this rank's share of the loss and of its gradient, before the sum over ranks.

        Args:
            epoch: Which epoch's dropout.

        Returns:
            The loss, a zero for the caller to fill, then the gradient in the order of `flat`, in one buffer for one
            all-reduce. (2 + num_weights,)
        """

    def evaluate(self) -> Any:
        """Return this rank's share of an evaluation without dropout, as `Objective.evaluate`."""
        return self.objective.evaluate(self.logits(), self.part)

    def logits(self) -> Floats:
        """Return the owned rows of the last layer, without dropout. (num_owned, num_classes)"""
        self.epoch = None
        return self.tensors.array(self.tensors.scores(self._forward, views(self.flat, self.layers)))

    def weights(self) -> list[Floats]:
        """Return a copy of each parameter, as `views` orders them."""
        return [self.host(view).copy() for view in views(self.flat, self.layers)]

    def local(self, gradient: Any) -> Any:
        """Return a summed gradient as the kind of buffer that `flat` is."""
        return gradient

    def host(self, buffer: Any) -> Floats:
        """Return a buffer of the kind that `flat` is as numbers on the host."""
        numbers: Floats = buffer
        return numbers

    def shared(self, numbers: Floats) -> Any:
        """Return *numbers* as a buffer that the collectives take, and `local` takes back."""
        return numbers

    @property
    def _dropout_epoch(self) -> int | None:
        """The epoch whose dropout is used; None of an evaluation, and where nothing is dropped."""
        return self.epoch if self.config.dropout else None

    def _forward(self, weights: Sequence[Any]) -> Any:
        """Return the scores of the owned nodes, as tensors, from the parameters as tensors."""
        return deque(self.outputs(weights), maxlen=1).pop()

    def outputs(self, weights: Sequence[Any]) -> Iterator[Any]:
        """Yield each layer's output as a tensor; all ranks must take all of them.

        Args:
            weights: The parameters as tensors, as `views` orders them.
        """
        weighted, own = self._first_layer()
        operation = self.tensors.operation
        epsilon = self.tensors.tensor(np.full((1, 1), EPSILON, self.config.dtype))
        operations = Operations(
            self._aggregation, self._leaving, self._attention, operation(weighted), operation(own), epsilon
        )
        drop = None if self._dropout_epoch is None else self._dropped
        return outputs(self.layers, by_layer(weights, self.layers), operations, drop, self.tensors)

    def _aggregation(self, depth: int) -> Operation:  # noqa: ARG002  (a pruned layer has its own)
        """Return A_hat of a layer: rows that enter it to rows that leave it."""
        return self.aggregate

    def _leaving(self, depth: int, rows: Any) -> Any:  # noqa: ARG002
        """Return the rows that leave a layer, of the rows that enter it."""
        return rows

    def _attention(self, depth: int) -> HostFunction:
        """Return the attention of a layer; `refuse_on_device` refuses it elsewhere."""
        raise NotImplementedError(f"{type(self).__name__} has no attention")

    @abstractmethod
    def _first_layer(self) -> tuple[Any, Any]:
        """Return the operators of the first layer, as `FirstLayer.operators`."""

    @abstractmethod
    def _dropped(self, depth: int, rows: Any, *, relu: bool) -> Any:
        """Return the rows that enter a layer, dropped out; after ReLU if *relu* is true."""

    @abstractmethod
    def _gradient_of(self, logits: Any) -> Any:
        """Return the derivative of the loss by the logits, and note the loss."""


def views(flat: Any, layers: Sequence[Layer]) -> list[Any]:
    """Return each layer's parameters within *flat*, on the same memory, one after the other."""
    found, begin = [], 0
    for layer in layers:
        for parameter in layer.parameters:
            found.append(flat[begin : begin + parameter.size].reshape(parameter.shape))
            begin += parameter.size
    return found


def by_layer(arrays: Sequence[Any], layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Return what `views` returns, or as many tensors, by layer and name."""
    given = iter(arrays)
    return [{parameter.name: next(given) for parameter in layer.parameters} for layer in layers]
