"""The MNIST network in PyTorch; only this module of the package imports torch."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (its name in every PyTorch program)
from typing_extensions import override

from unilaunch_mnist.arrays import Floats, Labels
from unilaunch_mnist.network import Network, views


class TorchNetwork(Network):
    """The network on any device of torch.

    Args:
        weights: Initial weights. (7850,)
        device_name: The device: "cpu", "cuda:0".
    """

    def __init__(self, weights: Floats, device_name: str) -> None:
        self.device = torch.device(device_name)
        on_device = torch.as_tensor(weights, device=self.device)
        self.tensors = [view.detach().requires_grad_() for view in views(on_device)]
        self.on_host = self.device.type == "cpu"
        self.flat = weights if self.on_host else on_device  # on cpu both share one memory

    @override
    def gradient(self, images: Floats, labels: Labels) -> Any:
        loss = F.cross_entropy(self._logits(images), self._put(labels))
        gradients = torch.autograd.grad(loss, self.tensors)
        fused = torch.cat([loss.detach().reshape(1), *(gradient.reshape(-1) for gradient in gradients)])
        return fused.numpy() if self.on_host else fused

    @override
    def count_right(self, images: Floats, labels: Labels) -> int:
        with torch.no_grad():
            return int((self._logits(images).argmax(dim=1) == self._put(labels)).sum())

    def _logits(self, images: Floats) -> torch.Tensor:
        matrix, bias = self.tensors
        return torch.relu(torch.addmm(bias, self._put(images), matrix))

    def _put(self, array: Floats | Labels) -> torch.Tensor:
        return torch.as_tensor(array, device=self.device)
