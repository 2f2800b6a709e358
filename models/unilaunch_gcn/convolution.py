"""The network, as any framework computes it: `+`, `*` are the framework's, and `Tensors` has the rest."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unilaunch_gcn.functions import Elu
from unilaunch_gcn.layers import Layer
from unilaunch_gcn.tensors import Operation, Tensors
from unilaunch_graph.arrays import HostFunction

#: What keeps the norm from dividing by zero, as in both frameworks' LayerNorm.
EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Operations:
    """What the ranks do together, and the features as operations on the first layer's weights.

    Attributes:
        aggregate: Returns A_hat of a layer, by its depth: rows that enter the layer to rows that leave it; of
            attention: owned rows to owned and halo rows.
        leaving: Returns the rows of nodes that leave a layer, by its depth, of the rows that enter it.
        attend: Returns the attention of a layer, by its depth: a function of those rows, att_src and att_dst.
        weighted: What *weight* is multiplied by: X, or A_hat X, as the layer's order says.
        own: What *self_weight* is multiplied by: X, the rows that leave the layer.
        epsilon: What keeps the norm from dividing by zero, in the type of the weights: MindSpore rounds a plain number
            to float32. (1, 1)
    """

    aggregate: Callable[[int], Operation]
    leaving: Callable[[int, Any], Any]
    attend: Callable[[int], HostFunction]
    weighted: Operation
    own: Operation
    epsilon: Any


class Drop(Protocol):
    """Dropout of the rows that enter a layer."""

    def __call__(self, depth: int, rows: Any, *, relu: bool) -> Any:
        """Return the rows that enter layer *depth*, dropped out; after ReLU if *relu* is true."""


def outputs(
    layers: Sequence[Layer], weights: Sequence[Mapping[str, Any]], operations: Operations,
    drop: Drop | None, use: Tensors,
) -> Iterator[Any]:  # fmt: skip
    """Yield each layer's output; the last one's are the logits. (rows that leave the layer, width_out)

    In an evaluation these are the rows of all owned nodes, in training those that the loss reaches.

    In training a layer's output may already be dropped out, for the next layer: then it is one step with ReLU.

    Args:
        layers: The layers.
        weights: Each layer's, by the names of its parameters.
        operations: A_hat and the features.
        drop: Returns the rows that enter a layer, dropped out; None for evaluation.
        use: The framework.
    """
    rows: Any = None
    with_relu = drop and not any(layer.is_residual or layer.heads for layer in layers)
    for depth, (layer, own) in enumerate(zip(layers, weights, strict=True)):
        drops = drop and not with_relu and rows is not None
        entering = drop(depth, rows, relu=False) if drop and drops else rows
        out = _aggregated(layer, operations.aggregate(depth), entering, operations, use)(own["weight"])
        if layer.heads:
            out = use.call(operations.attend(depth), out, own["att_src"], own["att_dst"])
        if "self_weight" in own:
            by = operations.own if entering is None else _by(operations.leaving(depth, entering), use)
            out = out + by(own["self_weight"])
        if "bias" in own:
            out = out + own["bias"]
        if layer.is_last:
            yield out
            return
        if "norm_scale" in own:
            out = normalise(out, operations.epsilon, use) * own["norm_scale"] + own["norm_shift"]
        if drop and with_relu:
            rows = drop(depth + 1, out, relu=True)
        else:
            out = use.call(Elu(), out) if layer.heads else use.relu(out)
            rows = out + operations.leaving(depth, rows) if layer.is_residual else out
        yield rows


def _aggregated(layer: Layer, aggregate: Operation, entering: Any, operations: Operations, use: Tensors) -> Operation:
    """Return the function from a layer's weight to A_hat H W."""
    if layer.order != "product first":
        return operations.weighted if entering is None else _by(aggregate(entering), use)
    by = operations.weighted if entering is None else _by(entering, use)
    return lambda weight: aggregate(by(weight))


def _by(rows: Any, use: Tensors) -> Operation:
    return lambda weight: use.product(rows, weight)


def normalise(rows: Any, epsilon: Any, use: Tensors) -> Any:
    """Layer normalisation of Ba, Kiros and Hinton (2016): each row has mean 0 and variance 1."""
    centred = rows - use.mean(rows)
    return centred / (use.mean(centred * centred) + epsilon) ** 0.5
