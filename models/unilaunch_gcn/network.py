"""What a framework does for the GCN: weights in, gradient and logits out. The rest of the training knows no tensor."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch_gcn.inputs import Inputs
from unilaunch_gcn.layers import Layer, Parameter
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_graph.arrays import Floats
from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.dropout import fill_mask, stream_keys
from unilaunch_graph.operators.aggregation import Aggregator
from unilaunch_graph.partition.part import Part


def initial_weights(layers: Sequence[Layer], seed: int) -> NDArray[np.float64]:
    """Return the same weights on every rank and framework: matrices as Glorot and Bengio (AISTATS 2010, equation 16).

    Returns:
        Each layer's parameters, one after the other, in one flat float64 buffer. (num_weights,)
    """
    return np.concatenate(
        [
            _initial(parameter, np.random.Philox(key=seed, counter=[0, 0, place, depth]))
            for depth, layer in enumerate(layers)
            for place, parameter in enumerate(layer.parameters)
        ]
    )


def _initial(parameter: Parameter, bits: np.random.BitGenerator) -> NDArray[np.float64]:
    if parameter.start != "glorot":
        return np.full(parameter.size, float(parameter.start == "ones"))
    bound = np.sqrt(6.0 / sum(parameter.shape))
    drawn: NDArray[np.float64] = (2.0 * np.random.Generator(bits).random(parameter.size) - 1.0) * bound
    return drawn


@dataclass(frozen=True, slots=True)
class Problem:
    """What a network on the host is made from: a part, and the operators that the frameworks share.

    Attributes:
        config: What is trained.
        part: This rank's part.
        aggregate: A_hat over all parts.
        inputs: The features.
    """

    config: NetworkConfig
    part: Part
    aggregate: Aggregator
    inputs: Inputs

    def mask(self, epoch: int, depth: int) -> Floats:
        """Return the dropout mask of the owned rows that enter layer *depth*. (num_owned, width_in)"""
        config = self.config
        out = np.empty((self.part.num_owned, config.layers[depth].width_in), config.dtype)
        fill_mask(out, self.part.owned, stream_keys(config.seed, epoch, depth), config.dropout)
        return out


class Network(ABC):
    """The GCN of one rank.

    Attributes:
        flat: All weights, layer after layer, as one buffer: a numpy array, or a tensor where the device is none of the
            host's. Who changes it changes the network. (num_weights,)
    """

    flat: Any

    @abstractmethod
    def gradient(self, epoch: int) -> Any:
        """Return this rank's share of the loss and of its gradient, before the sum over ranks.

        Args:
            epoch: Which epoch's dropout.

        Returns:
            The loss, a zero for the caller to fill, then the gradient in the order of `flat`, in one buffer for one
            all-reduce. (2 + num_weights,)
        """

    @abstractmethod
    def evaluate(self) -> Any:
        """Return this rank's share of the evaluation, without dropout.

        Returns:
            Right answers on training, validation and test nodes, and the validation loss summed: NaN if any owned
            node's logits are not finite. (4,)
        """

    @abstractmethod
    def logits(self) -> Floats:
        """Return the owned rows of the last layer, without dropout. (num_owned, num_classes)"""

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

    @abstractmethod
    def weights(self) -> list[Floats]:
        """Return a copy of each parameter, as `views` orders them."""


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


def count_right(logits: Floats, part: Part) -> NDArray[np.float64]:
    """Return right answers on training, validation and test nodes, and the validation loss summed. (4,) float64.

    The loss is NaN if any owned node's logits are not finite: its argmax means nothing, in whichever split it is.
    """
    right = logits.argmax(axis=1) == part.labels if part.num_owned else np.zeros(0, bool)
    validated = np.flatnonzero(part.split == VAL)
    rows = logits[validated].astype(np.float64)
    rows -= rows.max(axis=1, initial=-np.inf, keepdims=True) if len(rows) else 0.0
    losses = np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(rows)), part.labels[validated]]
    loss = losses.sum() if np.isfinite(logits).all() else np.nan
    return np.array([*(float((right & (part.split == use)).sum()) for use in (TRAIN, VAL, TEST)), loss])
