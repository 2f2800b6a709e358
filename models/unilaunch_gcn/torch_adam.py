"""Adam on a device: the number of steps is on the device too, so that a recorded step serves every epoch."""

from types import ModuleType

import torch
from typing_extensions import override

from unilaunch_graph.optimizer import BETA1, BETA2, Adam


class DeviceAdam(Adam):
    """`Adam` on a tensor of a device, in one kernel where there is one.

    Attributes:
        steps: The number of steps that were taken. () float64

    Args:
        weights: All weights, changed in place. (num_weights,)
        lr: Step size.
        decay: L2 factor.
        decayed: How many weights, from the front, the L2 factor is for.
        kernels: `triton_kernels`; None: torch's operations.
    """

    def __init__(
        self, weights: torch.Tensor, lr: float, decay: float, decayed: int, kernels: ModuleType | None
    ) -> None:
        super().__init__(weights, torch.zeros_like(weights), lr, decay, decayed)
        self.steps = torch.zeros((), dtype=torch.float64, device=weights.device)
        self.betas = torch.as_tensor([BETA1, BETA2], dtype=torch.float64, device=weights.device)
        self.kernels = kernels

    @override
    def resume(self, steps: int) -> None:
        self.steps.fill_(steps)

    @override
    def step(self, gradient: torch.Tensor) -> None:
        if not self.kernels:
            super().step(gradient)
            return
        self.steps += 1
        moments, options = (self.first, self.second), (self.lr, self.decay, self.decayed)
        self.kernels.adam_step(self.weights, moments, gradient, self.betas**self.steps, options)
