"""Adam with PyTorch's formula, for every framework: MindSpore's own corrects the bias elsewhere, by 1e-3."""

from typing import Any

#: As torch's defaults.
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


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
        """Take one step against *gradient*. (num_weights,)"""
        self.steps += 1
        if self.decay:
            gradient[: self.decayed] += self.decay * self.weights[: self.decayed]
        self.first *= BETA1
        self.first += (1 - BETA1) * gradient
        self.second *= BETA2
        self.second += (1 - BETA2) * gradient * gradient
        root = (self.second**0.5) / (1 - BETA2**self.steps) ** 0.5
        self.weights -= (self.lr / (1 - BETA1**self.steps)) * self.first / (root + EPSILON)
