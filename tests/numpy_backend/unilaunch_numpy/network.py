"""The GCN in numpy: the layers, operators and loss are unilaunch_gcn's, the derivatives are `autograd`'s."""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch_gcn.convolution import Functions, Operations, forward
from unilaunch_gcn.loss import CrossEntropy
from unilaunch_gcn.network import Network, Problem, by_layer, count_right, initial_weights, views
from unilaunch_graph.arrays import Floats
from unilaunch_numpy.autograd import Variable, apply, gradients, matmul, relu, row_mean

FUNCTIONS = Functions(matmul, relu, row_mean)


class NumpyNetwork(Network):
    """The GCN on the host.

    Args:
        problem: This rank's part of the graph, and the operators on it.

    Raises:
        SpecError: The training is to be in bfloat16.
    """

    def __init__(self, problem: Problem) -> None:
        config = problem.config
        if config.is_bfloat16:
            raise SpecError("--backend numpy --precision bfloat16: expected float32 or float64")
        self.problem, self.layers = problem, config.layers
        self.flat: Floats = initial_weights(config.layers, config.seed).astype(config.dtype)
        self.loss = CrossEntropy(problem.part)

    @override
    def gradient(self, epoch: int) -> NDArray[np.float64]:
        weights = self._variables()
        logits = self._forward(epoch, weights)
        loss, gradient = self.loss.value_and_gradient(logits.array)
        arrays = (array.ravel() for array in gradients(logits, gradient, weights))
        return np.concatenate([[loss, 0.0], *arrays], dtype=np.float64)

    @override
    def evaluate(self) -> NDArray[np.float64]:
        return count_right(self.logits(), self.problem.part)

    @override
    def logits(self) -> Floats:
        return self._forward(None, self._variables()).array

    @override
    def weights(self) -> list[Floats]:
        return [view.copy() for view in views(self.flat, self.layers)]

    def _variables(self) -> list[Variable]:
        return [Variable(view) for view in views(self.flat, self.layers)]

    def _forward(self, epoch: int | None, weights: list[Variable]) -> Variable:
        problem = self.problem
        operators = (problem.aggregate, *problem.inputs.operators(epoch))
        operations = Operations(*(partial(apply, operator) for operator in operators))
        mask = None if epoch is None or not problem.config.dropout else partial(problem.mask, epoch)
        logits: Variable = forward(self.layers, by_layer(weights, self.layers), operations, mask, FUNCTIONS)
        return logits
