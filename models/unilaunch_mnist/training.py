"""The whole training on one page: data, network, epochs, result. Numbers only; no framework's tensor."""

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from unilaunch.errors import DivergedError
from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.model import Framework, Session
from unilaunch.interfaces.step import Step
from unilaunch.json_value import JsonValue
from unilaunch_mnist.arrays import Ids
from unilaunch_mnist.loading import load_network
from unilaunch_mnist.network import Network
from unilaunch_mnist.preparation import Mnist
from unilaunch_mnist.sharding import normalise, shard

if TYPE_CHECKING:
    from unilaunch_mnist.spec import MnistSpec

#: Steps between two losses that are kept, as the tutorial prints them.
_KEPT = 10
#: Test images that are evaluated at once.
_BLOCK = 1000


@dataclass(slots=True)
class Training:
    """A training: its input, and the results of its epochs.

    Attributes:
        options: The user's options.
        session: The session of this rank.
        collectives: The data path between the ranks.
        network: The network in its framework.
        data: This rank's data.
        losses: Each epoch's mean loss over its steps.
        step_losses: The loss of every tenth step, over all ranks.
        accuracies: Each epoch's share of right answers on the test images.
        epoch_seconds: Each epoch's time, without its test.
    """

    options: "MnistSpec"
    session: Session
    collectives: Collectives
    network: Network
    data: Mnist
    losses: list[float] = field(default_factory=list)
    step_losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    epoch_seconds: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, options: "MnistSpec", data: Mnist, session: Session, framework: Framework) -> "Training":
        """Build the network; all ranks must call it."""
        with session.together("build network"):
            network = load_network(framework.backend.name, session.placement, session.seed)
        session.output.record(phase="train")
        return cls(options, session, framework.collectives, network, data)

    def run(self) -> None:
        """Train, and test after every epoch.

        Raises:
            DivergedError: The loss or a weight is not a finite number; on every rank.
        """
        for epoch in range(self.options.epochs):
            values = {"loss": self.losses[-1]} if self.losses else {}
            self.session.progress(Step("epoch", epoch + 1, self.options.epochs, values))
            begin = time.perf_counter()
            with np.errstate(over="ignore", invalid="ignore"):  # an overflow ends the training with one line
                self._train(epoch)
            self.epoch_seconds.append(time.perf_counter() - begin)
            self._refuse_infinite(epoch)
            self._test()
            self._say(epoch)

    def _train(self, epoch: int) -> None:
        world, batch_size = self.session.world, self.options.batch_size
        own = shard(len(self.data.images), world.rank, world.size, self.session.seed, epoch)
        losses = [self._step(own[begin : begin + batch_size]) for begin in range(0, len(own), batch_size)]
        self.step_losses += losses[::_KEPT]
        self.losses.append(float(np.mean(losses)))

    def _refuse_infinite(self, epoch: int) -> None:
        """End a training whose loss or weights are not finite; all ranks have the same loss and weights."""
        for what, value in (("loss of all ranks", self.losses[-1]), ("largest weight", abs(self.network.flat).max())):
            if not math.isfinite(value):
                raise DivergedError(
                    f"epoch {epoch + 1}: the {what} is {value:g}, not a finite number: the training has diverged, "
                    f"probably because --lr {self.options.lr:g} is too high: take a lower one"
                )

    def _step(self, batch: Ids) -> float:
        """Take one step and return its loss: batches of all ranks have the same size, so the mean of means is exact."""
        fused = self.network.gradient(normalise(self.data.images[batch]), self.data.labels[batch])
        self.collectives.all_reduce(fused)
        summed = self.network.local(fused)
        size = self.session.world.size
        self.network.flat -= (self.options.lr / size) * summed[1:]
        return float(summed[0]) / size

    def _test(self) -> None:
        images, labels = self.data.test_images, self.data.test_labels
        blocks = [slice(begin, begin + _BLOCK) for begin in range(0, len(labels), _BLOCK)]
        right = sum(self.network.count_right(normalise(images[block]), labels[block]) for block in blocks)
        of_all = sum(cast("list[int]", self.session.peers.share(right)))
        self.accuracies.append(of_all / self.data.num_test)

    def _say(self, epoch: int) -> None:
        loss, accuracy, seconds = self.losses[-1], self.accuracies[-1], self.epoch_seconds[-1]
        self.session.output.record(epoch=epoch + 1, loss=loss, test_accuracy=accuracy, seconds=seconds)
        progress = f"epoch {epoch + 1}/{self.options.epochs}: loss {loss:.4f}, test {accuracy:.2%}, {seconds:.2f} s"
        self.session.log.say(progress)

    def result(self) -> dict[str, JsonValue]:
        """Return what stands in `result.json`, the same on every rank; all ranks must call it."""
        # The first epoch allocates and warms up; it counts only if it is the only one.
        own_seconds = float(np.median(self.epoch_seconds[1:] or self.epoch_seconds))
        return {
            "num_train": len(self.data.images),
            "num_test": self.data.num_test,
            "batch_size": self.options.batch_size,
            "epochs": len(self.losses),
            "loss": cast("JsonValue", self.losses),
            "step_loss": cast("JsonValue", self.step_losses),
            "test_accuracies": cast("JsonValue", self.accuracies),
            "test_accuracy": self.accuracies[-1],
            "seconds_per_epoch": max(cast("list[float]", self.session.peers.share(own_seconds))),
        }
