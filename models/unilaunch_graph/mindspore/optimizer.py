"""Adam with PyTorch's formula: MindSpore's Adam corrects the bias in another place, and its curve differs by 1e-3."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real

import numpy as np
from mindspore import Parameter, Tensor

from unilaunch_graph.mindspore.ranks import Ranks
from unilaunch_graph.optimizer import Adam as HostAdam


class Adam:
    """Adam of Kingma and Ba (ICLR 2015, algorithm 1) as in `torch.optim.Adam`, in the type of each parameter.

    MindSpore's `nn.Adam` keeps its learning rate in float32; this class gives the same curve as PyTorch in float64.
    The parameters become rank 0's when the optimizer is made, since each rank may have drawn others: all ranks must
    make it, after the graph is loaded.

    Args:
        parameters: The parameters to train, as `net.trainable_params()` returns them.
        learning_rate: Step size, a number; an attribute, which a schedule may set in each step.
        weight_decay: L2 factor.

    Raises:
        TypeError: There are groups of parameters, or the learning rate is a schedule.
    """

    def __init__(self, parameters: Iterable[Parameter], learning_rate: float = 1e-3, weight_decay: float = 0.0) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        is_one = isinstance(learning_rate, Real) or (isinstance(learning_rate, Tensor) and learning_rate.size == 1)
        if not is_one or not all(isinstance(parameter, Parameter) for parameter in self.parameters):
            raise TypeError(
                "Adam: expected parameters, not groups of them, and one number as learning_rate; a schedule sets "
                "optimizer.learning_rate in each step"
            )
        if Ranks.of_script is not None:
            _broadcast(self.parameters, Ranks.of_script)
        self.steps = [
            HostAdam(weights, np.zeros_like(weights), float(learning_rate), weight_decay, weights.size)
            for weights in (np.array(parameter.asnumpy()).ravel() for parameter in self.parameters)
        ]

    def __call__(self, gradients: Tensor | Sequence[Tensor]) -> None:
        """Take one step against the gradients, which stand in the order of the parameters."""
        every = (gradients,) if isinstance(gradients, Tensor) else gradients
        for parameter, step, gradient in zip(self.parameters, self.steps, every, strict=True):
            step.lr = float(self.learning_rate)
            step.weights[...] = parameter.asnumpy().ravel()  # a checkpoint may have been loaded in between
            step.step(np.array(gradient.asnumpy()).ravel())
            parameter.set_data(Tensor(step.weights.reshape(parameter.shape)))

    def state_dict(self) -> dict[str, Parameter]:
        """Return the moments and the number of steps, as `ms.save_checkpoint` takes them."""
        return {
            f"{place}.{name}": Parameter(Tensor(np.array(value)), requires_grad=False)
            for place, step in enumerate(self.steps)
            for name, value in (("first", step.first), ("second", step.second), ("steps", step.steps))
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` returned, or what `ms.load_checkpoint` returns of it."""
        for place, step in enumerate(self.steps):
            step.first[...] = state[f"{place}.first"].asnumpy()
            step.second[...] = state[f"{place}.second"].asnumpy()
            step.resume(int(state[f"{place}.steps"]))


def _broadcast(parameters: Iterable[Parameter], ranks: Ranks) -> None:
    for parameter in parameters:
        weights = np.array(parameter.asnumpy())
        ranks.collectives.broadcast(weights, 0)
        parameter.set_data(Tensor(weights))
