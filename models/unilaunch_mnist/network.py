"""The interface between the training, which uses numpy only, and a framework's network."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from unilaunch_mnist.arrays import Floats, Labels
from unilaunch_mnist.idx import NUM_CLASSES, NUM_PIXELS

#: Standard deviation of MindSpore's weight_init="normal".
_SPREAD = 0.01


def initial_weights(seed: int) -> Floats:
    """Return the same weights on every rank and framework: normal ones, and zeros for the bias.

    Returns:
        The matrix (784, 10), row after row, then the bias (10,). (7850,)
    """
    draw = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, 0]))
    matrix = _SPREAD * draw.standard_normal(NUM_PIXELS * NUM_CLASSES)
    return np.concatenate([matrix, np.zeros(NUM_CLASSES)], dtype=np.float32, casting="same_kind")


class Network(ABC):
    """The tutorial's network on one rank: one dense layer with a ReLU behind it.

    The tutorial puts a ReLU after the last layer: a class whose logits are all negative stops learning. Of
    the seeds 0 to 39, five lose one in the first steps and end near 80 %; with the others, the default among them, one
    epoch of global batches of 64 reaches 90.5 to 91.1 % of the test images, as it does without the ReLU.

    Attributes:
        flat: All weights in one buffer: a numpy array, or a tensor where that can be changed in place. Changing it
            changes the network. (7850,)
    """

    flat: Any

    @abstractmethod
    def gradient(self, images: Floats, labels: Labels) -> Any:
        """Return the loss of a batch (the mean of its cross entropies) and its gradient.

        Args:
            images: (batch, 784)
            labels: (batch,)

        Returns:
            The loss, then the gradient in the order of `flat`, in one buffer for one all-reduce: a host array on cpu,
            the framework's tensor on a device. (7851,) float32
        """

    def local(self, summed: Any) -> Any:
        """Return a summed buffer as the same type of array as `flat`."""
        return summed

    @abstractmethod
    def count_right(self, images: Floats, labels: Labels) -> int:
        """Return how many images have their largest logit at their label.

        Args:
            images: (images, 784)
            labels: (images,)
        """


def views(flat: Any) -> tuple[Any, Any]:
    """Return the matrix (784, 10) and the bias (10,) within *flat*, on the same memory."""
    return flat[:-NUM_CLASSES].reshape(NUM_PIXELS, NUM_CLASSES), flat[-NUM_CLASSES:]
