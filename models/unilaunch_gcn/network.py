"""The GCN of one rank, on any framework: its forward pass, its gradient, and the steps of a training."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.linear import LinearOperator
from unilaunch.json_value import JsonValue
from unilaunch_gcn.layers import Evaluation, Layer, Mode, NetworkConfig, by_layer, count_decayed, views
from unilaunch_gcn.objective import Objective
from unilaunch_gcn.tensors import Operation, Tensors
from unilaunch_graph.arrays import Floats
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.part import Part

#: What keeps the norm from dividing by zero, as in both frameworks' LayerNorm.
EPSILON = 1e-5


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
    """

    flat: Any

    def __init__(self, config: NetworkConfig, part: Part, objective: Objective, tensors: Tensors) -> None:
        self.config, self.layers, self.part = config, config.layers, part
        self.objective, self.tensors = objective, tensors
        # In the type of the weights: MindSpore rounds a plain number to float32.
        self.epsilon = tensors.tensor(np.full((1, 1), EPSILON, config.dtype))

    @abstractmethod
    def forward(self, mode: Mode) -> "Pass":
        """Return a forward pass; all ranks must call it."""

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
        return self.tensors.array(self._evaluated())

    def outputs(self, weights: Sequence[Any]) -> Iterator[Any]:
        """Yield each layer's output in an evaluation, as a tensor; all ranks must take all of them.

        Args:
            weights: The parameters as tensors, as `views` orders them.
        """
        return outputs(self.layers, by_layer(weights, self.layers), self.forward(Evaluation()))

    def _evaluated(self) -> Any:
        scores = partial(self._scores, self.forward(Evaluation()))
        return self.tensors.scores(scores, views(self.flat, self.layers))

    def _gradients(self, mode: Mode, gradient_of: Operation) -> Sequence[Any]:
        """Return the derivatives of the loss by each parameter, from *gradient_of* the scores."""
        scores = partial(self._scores, self.forward(mode))
        return self.tensors.gradients(scores, gradient_of, views(self.flat, self.layers))

    def _scores(self, run: "Pass", weights: Sequence[Any]) -> Any:
        """Return the output of the last layer, as a tensor, from the parameters as tensors."""
        return deque(outputs(self.layers, by_layer(weights, self.layers), run), maxlen=1).pop()

    def adam(self, lr: float, decay: float) -> Adam:
        """Return an optimiser of the weights.

        Args:
            lr: Step size.
            decay: L2 factor.
        """
        return Adam(self.flat, self.flat * 0.0, lr, decay, count_decayed(self.layers))

    def steps(self, adam: Adam, collectives: Collectives, meter: Meter) -> "Steps":
        """Return the steps of a training."""
        return Steps(self, adam, collectives, meter)

    def figures(self) -> dict[str, JsonValue]:
        """Return what only this kind of network can say of a training, for `result.json`."""
        return {}

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


class Pass(ABC):
    """One forward pass: what the ranks do together in it, its dropout, and the framework's arithmetic.

    In a training epoch a layer has the rows that the loss reaches, in an evaluation those of all owned nodes.

    Args:
        network: The network.
        features: What the first layer's *weight* is multiplied by: X, or A_hat X, as the layer's order says; and its
            *self_weight*: X, the rows that leave the layer.
    """

    def __init__(self, network: Network, features: tuple[LinearOperator, LinearOperator]) -> None:
        self.layers, self.features, self.tensors = network.layers, features, network.tensors
        self.epsilon = network.epsilon
        self.weighted, self.own = (self.tensors.operation(operator) for operator in features)

    @abstractmethod
    def aggregate(self, depth: int, rows: Any) -> Any:
        """Return A_hat of a layer times the rows that enter it; of attention: owned rows to owned and halo rows."""

    def leaving(self, depth: int, rows: Any) -> Any:  # noqa: ARG002  (all but where training leaves rows out)
        """Return the rows of the nodes that leave a layer, of the rows that enter it."""
        return rows

    def attend(self, depth: int, rows: Any, own: Mapping[str, Any]) -> Any:
        """Return the attention of a layer over owned and halo rows; `options.refuse_options` refuses it elsewhere."""
        raise NotImplementedError(f"{type(self).__name__} has no attention")

    @abstractmethod
    def product(self, rows: Any, weight: Any) -> Any:
        """Return rows @ weight, in the precision of the training."""

    @abstractmethod
    def activated(self, depth: int, rows: Any) -> Any:
        """Return the rows behind a layer's nonlinearity: ReLU, behind attention elu."""

    @abstractmethod
    def dropped(self, depth: int, rows: Any) -> Any:
        """Return the rows that enter layer *depth*, dropped out in training."""

    def entering(self, depth: int, rows: Any) -> Any:
        """Return the rows that enter layer *depth*: ReLU of *rows*, dropped out in training."""
        return self.dropped(depth, self.activated(depth - 1, rows))

    def terms(self, depth: int, own: Mapping[str, Any], entering: Any) -> tuple[Any, Any]:
        """Return H W, or (A_hat H) W as the layer's order says, and H W_self; None without a W_self.

        Args:
            depth: Which layer.
            own: Its parameters, by name.
            entering: H; None in the first layer, which has the features.
        """
        itself = own.get("self_weight")
        if entering is None:
            return self.weighted(own["weight"]), None if itself is None else self.own(itself)
        is_product_first = self.layers[depth].order == "product first"
        product = self.product(entering if is_product_first else self.aggregate(depth, entering), own["weight"])
        return product, None if itself is None else self.product(self.leaving(depth, entering), itself)

    def sums(self, depth: int, own: Mapping[str, Any], entering: Any) -> Any:
        """Return A_hat H W + H W_self + b of a layer. (rows that leave the layer, width_out)

        Args:
            depth: Which layer.
            own: Its parameters, by name.
            entering: As in `terms`.
        """
        out, itself = self.terms(depth, own, entering)
        if self.layers[depth].order == "product first":
            out = self.aggregate(depth, out)
        if self.layers[depth].heads:
            out = self.attend(depth, out, own)
        out = out if itself is None else out + itself
        return out + own["bias"] if "bias" in own else out

    def entering_sums(self, depth: int, own: Mapping[str, Any], entering: Any) -> Any:
        """Return what `entering` makes of `sums`, for the next layer; a device makes both at once."""
        return self.entering(depth + 1, self.sums(depth, own, entering))


def outputs(layers: Sequence[Layer], weights: Sequence[Mapping[str, Any]], run: Pass) -> Iterator[Any]:
    """Yield each layer's output; the last one's are the scores. (rows that leave the layer, width_out)

    In training it may be dropped out already, for the next layer: then dropout is one step with ReLU.

    Args:
        layers: The layers.
        weights: Each layer's, by the names of its parameters.
        run: The forward pass.
    """
    entering = rows = None
    keeps_rows = any(layer.is_residual or layer.heads for layer in layers)
    for depth, (layer, own) in enumerate(zip(layers, weights, strict=True)):
        if layer.is_last:
            yield run.sums(depth, own, entering)
            return
        if not keeps_rows and "norm_scale" not in own:
            entering = run.entering_sums(depth, own, entering)
            yield entering
            continue
        out = run.sums(depth, own, entering)
        if "norm_scale" in own:
            out = normalise(out, run.epsilon, run.tensors) * own["norm_scale"] + own["norm_shift"]
        if not keeps_rows:
            entering = run.entering(depth + 1, out)
            yield entering
            continue
        out = run.activated(depth, out)
        rows = out + run.leaving(depth, rows) if layer.is_residual else out
        yield rows
        entering = run.dropped(depth + 1, rows)


def normalise(rows: Any, epsilon: Any, use: Tensors) -> Any:
    """Layer normalisation of Ba, Kiros and Hinton (2016): each row has mean 0 and variance 1."""
    centred = rows - use.mean(rows)
    return centred / (use.mean(centred * centred) + epsilon) ** 0.5


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What a step has shown, on all ranks alike but for the last two.

    Attributes:
        loss: The loss before the step.
        is_stop_asked: Some rank was asked to stop before or in the step.
        communication: Seconds in which this rank waited for others.
        received: Bytes of halo rows that arrived.
    """

    loss: float
    is_stop_asked: bool
    communication: float
    received: int


class Steps:
    """Steps that the host waits for, one by one.

    Args:
        network: The network.
        adam: The optimiser of its weights.
        collectives: The ranks' collectives, on buffers of the kind that `Network.gradient` returns.
        meter: Counts bytes and waiting.
    """

    def __init__(self, network: Network, adam: Adam, collectives: Collectives, meter: Meter) -> None:
        self.network, self.adam, self.collectives, self.meter = network, adam, collectives, meter

    def take(self, epoch: int, *, stop: bool) -> list[StepFigures]:
        """Take a step, and return the figures of the steps that have ended since the last call.

        Args:
            epoch: Which epoch's dropout.
            stop: This rank was asked to stop; all ranks learn of it in the same step.
        """
        with self.meter.trace.span("forward and backward"):
            gradient = self.network.gradient(epoch)
        if stop:
            gradient[1] = 1.0  # travels with the gradient
        with self.meter.communication("all-reduce"):
            self.collectives.all_reduce(gradient)
        summed = self.network.local(gradient)
        loss, is_stop_asked = float(summed[0]), float(summed[1]) > 0
        with self.meter.trace.span("optimizer"):
            self.adam.step(summed[2:])
        return [StepFigures(loss, is_stop_asked, *self.meter.read())]

    def finish(self) -> list[StepFigures]:
        """Wait for the steps that have not ended, and return their figures."""
        return []
