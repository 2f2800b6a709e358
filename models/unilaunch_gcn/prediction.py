"""Scores and embeddings of a rank's nodes from a trained model: by numpy, layer after layer."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.host import HostNetwork
from unilaunch_gcn.layers import views
from unilaunch_gcn.tensors import Forward, Operation, Tensors
from unilaunch_graph.arrays import Floats, HostFunction, Rows


class HostArrays(Tensors):
    """numpy: what inference needs of a framework."""

    @override
    def tensor(self, array: Floats) -> Floats:
        return array

    @override
    def array(self, tensor: Floats) -> Floats:
        return tensor

    @override
    def mean(self, rows: Floats) -> Floats:
        mean: Floats = rows.mean(axis=1, keepdims=True)
        return mean

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return operator.matmat

    @override
    def call(self, function: HostFunction, *inputs: Floats) -> Floats:
        return function.forward(inputs)

    @override
    def gradients(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError("numpy has no derivatives")


def infer(network: HostNetwork) -> Iterator[Rows]:
    """Yield each layer's output on the owned nodes, in float32; all ranks must take all of them."""
    for rows in network.outputs(views(network.flat, network.layers)):
        yield rows.astype(np.float32, copy=False)
