"""Adam with PyTorch's formula: MindSpore's Adam corrects the bias in another place, and its curve differs by 1e-3."""

from collections.abc import Iterable, Sequence

import numpy as np
from mindspore import Parameter, Tensor

from unilaunch_graph.optimizer import Adam as HostAdam


class Adam:
    """Adam of Kingma and Ba (ICLR 2015, algorithm 1) as in `torch.optim.Adam`, in the type of each parameter.

    MindSpore's `nn.Adam` keeps its learning rate in float32; this class gives the same curve as PyTorch in float64.

    Args:
        parameters: The parameters to train, as `net.trainable_params()` returns them.
        learning_rate: Step size; an attribute, which a schedule may set.
        weight_decay: L2 factor.
    """

    def __init__(self, parameters: Iterable[Parameter], learning_rate: float = 1e-3, weight_decay: float = 0.0) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.steps = [
            HostAdam(weights, np.zeros_like(weights), learning_rate, weight_decay, weights.size)
            for weights in (np.array(parameter.asnumpy()).ravel() for parameter in self.parameters)
        ]

    def __call__(self, gradients: Tensor | Sequence[Tensor]) -> None:
        """Take one step against the gradients, which stand in the order of the parameters."""
        every = (gradients,) if isinstance(gradients, Tensor) else gradients
        for parameter, step, gradient in zip(self.parameters, self.steps, every, strict=True):
            step.lr = self.learning_rate
            step.weights[...] = parameter.asnumpy().ravel()  # a checkpoint may have been loaded in between
            step.step(np.array(gradient.asnumpy()).ravel())
            parameter.set_data(Tensor(step.weights.reshape(parameter.shape)))
