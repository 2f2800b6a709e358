"""The steps of a training: this rank's gradient, the sum over ranks, Adam."""

from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.optimizer import Adam


class HasGradient(Protocol):
    """A network, as steps know it."""

    def gradient(self, epoch: int) -> Any:
        """Return this rank's share of the loss, a zero, and its share of the gradient. (2 + num_weights,)"""

    def local(self, gradient: Any) -> Any:
        """Return a summed gradient as Adam takes it."""


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

    def __init__(self, network: HasGradient, adam: Adam, collectives: Collectives, meter: Meter) -> None:
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
        if isfinite(loss):  # else the weights that have led to it stay: they tell in which layer
            with self.meter.trace.span("optimizer"):
                self.adam.step(summed[2:])
        return [StepFigures(loss, is_stop_asked, *self.meter.read())]

    def finish(self) -> list[StepFigures]:
        """Wait for the steps that have not ended, and return their figures."""
        return []
