"""Scores, classes and embeddings of all nodes from a trained model: by numpy, layer after layer."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.host import HostNetwork
from unilaunch_gcn.layers import views
from unilaunch_gcn.tensors import Forward, Operation, Tensors
from unilaunch_graph.arrays import Floats, HostFunction, Rows
from unilaunch_graph.data.labels import predicted_classes
from unilaunch_graph.partition.part import Part


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


def predictions(part: Part, scores: Rows) -> dict[str, NDArray[Any]]:
    """Return the arrays of a predictions file, with a row for each owned node.

    "scores" (n, num_outputs) float32; "classes" as `predicted_classes` returns them; "split" (n,) uint8: 0 none, 1
    training, 2 validation, 3 test.

    Args:
        part: This rank's part.
        scores: The network's output on the owned nodes. (num_owned, num_outputs)
    """
    scores = scores.astype(np.float32, copy=False)
    classes = predicted_classes(part.task, scores)
    return {"scores": scores, **({} if classes is None else {"classes": classes}), "split": np.asarray(part.split)}
