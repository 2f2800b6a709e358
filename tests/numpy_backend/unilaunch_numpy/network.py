"""numpy, as the GCN asks for a framework: layers, operators and loss are unilaunch_gcn's, the derivatives ours."""

import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.layers import NetworkConfig
from unilaunch_gcn.tensors import Forward, Operation, Tensors
from unilaunch_graph.arrays import HostFunction
from unilaunch_numpy.autograd import Variable, apply, call, gradients, row_mean

#: Seconds for which each epoch sleeps. With it a training lasts long enough to be interrupted, without computing long.
PAUSE = float(os.environ.get("NUMPY_BACKEND_PAUSE", "0"))  # noqa: TID251


class NumpyTensors(Tensors):
    """numpy on the host.

    Args:
        config: What is trained.

    Raises:
        SpecError: The training is to be in bfloat16.
    """

    def __init__(self, config: NetworkConfig) -> None:
        if config.is_bfloat16:
            raise SpecError("--backend numpy --precision bfloat16: expected float32 or float64")

    @override
    def tensor(self, array: NDArray[Any]) -> Any:
        return Variable(array)

    @override
    def array(self, tensor: Any) -> NDArray[Any]:
        array: NDArray[Any] = tensor.array
        return array

    @override
    def mean(self, rows: Variable) -> Variable:
        return row_mean(rows)

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return partial(apply, operator)

    @override
    def call(self, function: HostFunction, *inputs: Variable) -> Variable:
        return call(function, *inputs)

    @override
    def gradients(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Any]) -> Sequence[Variable]:
        wanted = [Variable(parameter) for parameter in parameters]
        scores = forward(wanted)
        time.sleep(PAUSE)
        return [Variable(array) for array in gradients(scores, gradient_of(scores).array, wanted)]
