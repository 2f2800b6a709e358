"""A training whose numbers are not finite: where the first of them is, and the one line that ends it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unilaunch.errors import DivergedError
from unilaunch.interfaces.backend import Collectives
from unilaunch_gcn.network import Network, by_layer, views
from unilaunch_graph.optimizer import Adam

if TYPE_CHECKING:
    from unilaunch_gcn.spec import TrainingSpec

LOSS = "loss of all ranks"


@dataclass(frozen=True, slots=True)
class FiniteCheck:
    """Ends a training that has left the finite numbers: nothing after it would mean anything.

    All ranks must make the same calls. They have the same losses and weights, so they agree without a message. The
    layer is looked for only when a number is not finite.

    Attributes:
        options: What the user chose.
        network: The network.
        adam: The optimiser of its weights.
        collectives: The data path between the ranks.
    """

    options: "TrainingSpec"
    network: Network
    adam: Adam
    collectives: Collectives

    def loss(self, name: str, value: float, epoch: int) -> None:
        """Check a loss, whose *name* the message says.

        Raises:
            DivergedError: *value* is not a finite number.
        """
        if not math.isfinite(value):
            raise self._error(name, value, epoch, first_infinite(self.network, self.collectives))

    def weights(self, epoch: int) -> None:
        """Check the weights, and Adam's second moment: where that is infinite, weights stay finite and never change.

        Raises:
            DivergedError: One of the numbers is not finite.
        """
        for name, numbers in (("weight", self.network.flat), ("squared gradient", self.adam.second)):
            value = max(float(numbers.max()), -float(numbers.min()))  # no array as large as the weights
            if not math.isfinite(value):
                layers = _infinite_layers(self.network, numbers)
                raise self._error(f"largest {name}", value, epoch, f"in {_layer(layers[0], self.network)}")

    def _error(self, name: str, value: float, epoch: int, place: str) -> DivergedError:
        cause = f"--lr {self.options.lr:g} is too high: take a lower one"
        if epoch == 1 and name == LOSS:  # no step was taken yet
            cause = "the features are too large: scale them"
        wider = {"bfloat16": ", or --precision float32", "float32": ", or --precision float64", "float64": ""}
        return DivergedError(
            f"epoch {epoch}: the {name} is {value:g}, not a finite number: the training has diverged {place}, probably "
            f"because {cause}{wider[self.options.precision]}"
        )


def first_infinite(network: Network, collectives: Collectives) -> str:
    """Return the first layer whose weights or output are not finite, in words. All ranks must call this.

    Outputs are those of an evaluation, without dropout. A GPU's steps are queued ahead, so its weights may be those
    after the step: then the weights of every layer are not finite, and no layer is named.
    """
    of_weights = _infinite_layers(network, network.flat)
    of_outputs = _infinite_outputs(network, collectives)
    if len(of_weights) == len(network.layers) > 1:
        return "in the weights of all layers"
    if of_weights and (not of_outputs or of_weights[0] <= of_outputs[0]):
        return f"in the weights of {_layer(of_weights[0], network)}"
    if of_outputs:
        return f"in the output of {_layer(of_outputs[0], network)}"
    return "behind the last layer: without dropout its output is finite"


def _infinite_layers(network: Network, flat: Any) -> list[int]:
    """Return the layers with a number in *flat*, a buffer of the network's kind, that is not finite."""
    layers = by_layer(views(network.host(flat), network.layers), network.layers)
    return [depth for depth, own in enumerate(layers) if not all(np.isfinite(array).all() for array in own.values())]


def _infinite_outputs(network: Network, collectives: Collectives) -> list[int]:
    """Return the layers whose output is not finite on some rank."""
    counts: list[int] = []
    network.epoch = None  # an evaluation: no dropout
    zero = network.tensors.tensor(np.zeros((1, 1), network.config.dtype))

    def look(weights: Sequence[Any]) -> Any:
        for rows in network.outputs(weights):
            numbers = network.tensors.array(rows + zero)  # numpy has no bfloat16, and a sum with float32 is float32
            counts.append(int(np.count_nonzero(~np.isfinite(numbers))))
        return rows

    network.tensors.scores(look, views(network.flat, network.layers))
    shared = network.shared(np.array(counts, np.float64))
    collectives.all_reduce(shared)
    return [int(depth) for depth in np.flatnonzero(network.host(network.local(shared)))]


def _layer(depth: int, network: Network) -> str:
    return f"layer {depth + 1} of {len(network.layers)}"
