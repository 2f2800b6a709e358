"""Adam with PyTorch's formula, for every framework: MindSpore's own corrects the bias elsewhere, by 1e-3."""

from collections.abc import Iterator
from typing import Any

import numpy as np

#: As torch's defaults.
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
#: Weights that a step changes at a time on the host: whole arrays of temporary numbers took as much as the weights.
_PART = 1 << 16


class Adam:
    """Adam of Kingma and Ba (ICLR 2015) as in `torch.optim.Adam`, on one flat buffer of numbers.

    It is written with operators that numpy arrays and torch tensors share, so that it runs where the weights are.

    Args:
        weights: All weights, changed in place. (num_weights,)
        zeros: As many zeros of the same kind; becomes the first moment.
        lr: Step size.
        decay: L2 factor.
        decayed: How many weights, from the front, the L2 factor is for.
    """

    def __init__(self, weights: Any, zeros: Any, lr: float, decay: float, decayed: int) -> None:
        self.weights = weights
        self.first = zeros
        self.second = zeros + 0.0
        self.lr, self.decay, self.decayed = lr, decay, decayed
        self.steps: Any = 0

    def resume(self, steps: int) -> None:
        """Go on as after so many steps."""
        self.steps = steps

    def step(self, gradient: Any) -> None:
        """Take one step against *gradient*, which is overwritten. (num_weights,)"""
        self.steps += 1
        if self.decay:
            for part in _parts(self.weights[: self.decayed]):
                gradient[: self.decayed][part] += self.decay * self.weights[: self.decayed][part]
        for part in _parts(self.weights):
            self._change(self.weights[part], self.first[part], self.second[part], gradient[part])

    def _change(self, weights: Any, first: Any, second: Any, gradient: Any) -> None:
        first *= BETA1
        first += (1 - BETA1) * gradient
        second *= BETA2
        second += (1 - BETA2) * gradient * gradient
        root = (second**0.5) / (1 - BETA2**self.steps) ** 0.5
        weights -= (self.lr / (1 - BETA1**self.steps)) * first / (root + EPSILON)


def _parts(weights: Any) -> Iterator[slice]:
    """Yield parts of an array of the host that stay in the cache; a tensor of a device is one part."""
    size = _PART if isinstance(weights, np.ndarray) else max(1, len(weights))
    return (slice(begin, begin + size) for begin in range(0, len(weights), size))
