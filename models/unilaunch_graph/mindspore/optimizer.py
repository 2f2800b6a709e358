"""Adam with PyTorch's formula: MindSpore's Adam corrects the bias in another place, and its curve differs by 1e-3."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from numbers import Real
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor
from numpy.typing import NDArray

from unilaunch.errors import SpecError
from unilaunch_graph.mindspore.ranks import Ranks
from unilaunch_graph.optimizer import Adam as HostAdam
from unilaunch_mindspore.linear import HALVES, widened


class Adam:
    """Adam of Kingma and Ba (ICLR 2015, algorithm 1) as in `torch.optim.Adam`, in the type of each parameter.

    Of a parameter of 16 bits the moments and the weights between two steps are float32: squares of gradients, and small
    steps, are less than its type can hold.
    MindSpore's `nn.Adam` keeps its learning rate in float32; this class gives the same curve as PyTorch in float64.
    All ranks must call it; the first step refuses parameters that differ between the ranks, which may have drawn them.

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
        self.is_checked = False
        self.steps = [
            HostAdam(weights, np.zeros_like(weights), float(learning_rate), weight_decay, weights.size)
            for weights in (np.array(_flat(parameter)) for parameter in self.parameters)
        ]

    def __call__(self, gradients: Tensor | Sequence[Tensor]) -> None:
        """Take one step against the gradients, which stand in the order of the parameters.

        Raises:
            ValueError: There is another number of gradients than of parameters, or one has another shape.
            SpecError: On every rank, in the first step: the parameters differ between the ranks.
        """
        every = (gradients,) if isinstance(gradients, Tensor) else gradients
        _check_shapes(every, self.parameters)
        if not self.is_checked and Ranks.of_script is not None:
            _refuse_different(self.parameters, Ranks.of_script)
            self.is_checked = True
        for parameter, step, gradient in zip(self.parameters, self.steps, every, strict=True):
            step.lr = float(self.learning_rate)
            weights, rounded = _flat(parameter), _flat(Tensor.from_numpy(step.weights).astype(parameter.dtype))
            if not np.array_equal(weights, rounded):  # a checkpoint has been loaded in between
                step.weights[...] = weights
            step.step(np.array(_flat(gradient)))
            # In place: a function that ms.jit has compiled keeps the memory that it was compiled with.
            parameter.copy_(Tensor.from_numpy(step.weights.reshape(parameter.shape)))

    def state_dict(self) -> dict[str, Parameter]:
        """Return the moments and the number of steps, as `ms.save_checkpoint` takes them; of 16 bits, weights too."""
        return {
            f"{place}.{name}": Parameter(Tensor(np.array(getattr(step, name))), requires_grad=False)
            for place, (parameter, step) in enumerate(zip(self.parameters, self.steps, strict=True))
            for name in ("first", "second", "steps", *["weights"] * (parameter.dtype in HALVES))
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` returned, or what `ms.load_checkpoint` returns of it.

        A moment may also have its parameter's shape, as in PyTorch's Adam.
        """
        for place, step in enumerate(self.steps):
            step.first[...] = state[f"{place}.first"].asnumpy().ravel()
            step.second[...] = state[f"{place}.second"].asnumpy().ravel()
            if f"{place}.weights" in state:
                step.weights[...] = state[f"{place}.weights"].asnumpy()
            step.resume(int(state[f"{place}.steps"]))


def _flat(tensor: Tensor) -> NDArray[Any]:
    numbers: NDArray[Any] = widened(tensor).asnumpy().ravel()
    return numbers


def _check_shapes(gradients: Sequence[Tensor], parameters: Sequence[Parameter]) -> None:
    for place, (gradient, parameter) in enumerate(zip_longest(gradients, parameters)):
        found, expected = getattr(gradient, "shape", None), getattr(parameter, "shape", None)
        if found != expected:
            raise ValueError(
                f"Adam: {len(gradients)} gradients for {len(parameters)} parameters: number {place} has the shape "
                f"{found}, not {expected}"
            )


def _refuse_different(parameters: Iterable[Parameter], ranks: Ranks) -> None:
    digest = hashlib.sha256(b"".join(parameter.asnumpy().tobytes() for parameter in parameters)).digest()
    of_this_rank = np.frombuffer(digest, np.uint8)
    of_rank_0 = of_this_rank.copy()
    ranks.collectives.broadcast(of_rank_0, 0)
    num_different = np.array([float((of_rank_0 != of_this_rank).any())])
    ranks.collectives.all_reduce(num_different)
    if num_different[0]:
        raise SpecError(
            "Adam: the parameters differ between the ranks: call ms.set_seed(0) before the network is made; parameters "
            "for the nodes of one rank alone need an optimizer of MindSpore"
        )
