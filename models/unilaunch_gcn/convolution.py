"""The network, as any framework computes it: `+`, `*` are the framework's, and `Tensors` has the rest."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unilaunch_gcn.attention import Elu
from unilaunch_gcn.layers import Layer
from unilaunch_gcn.tensors import Operation, Tensors
from unilaunch_graph.arrays import HostFunction

#: What keeps the norm from dividing by zero, as in both frameworks' LayerNorm.
EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Operations:
    """What the ranks do together, and the features as operations on the first layer's weights.

    Attributes:
        aggregate: A_hat; of attention: owned rows to owned and halo rows.
        attend: Returns the attention of a layer, by its depth: a function of those rows, att_src and att_dst.
        weighted: What *weight* is multiplied by: X, or A_hat X, as the layer's order says.
        own: What *self_weight* is multiplied by: X.
        epsilon: What keeps the norm from dividing by zero, in the type of the weights: MindSpore rounds a plain number
            to float32. (1, 1)
    """

    aggregate: Operation
    attend: Callable[[int], HostFunction]
    weighted: Operation
    own: Operation
    epsilon: Any


def outputs(
    layers: Sequence[Layer], weights: Sequence[Mapping[str, Any]], operations: Operations,
    mask: Callable[[int], Any] | None, use: Tensors,
) -> Iterator[Any]:  # fmt: skip
    """Yield each layer's output, the rows of the owned nodes; the last one's are the logits. (num_owned, width_out)

    Args:
        layers: The layers.
        weights: Each layer's, by the names of its parameters.
        operations: A_hat and the features.
        mask: Returns the dropout mask of the rows that enter a layer; None for evaluation.
        use: The framework.
    """
    rows: Any = None
    for depth, (layer, own) in enumerate(zip(layers, weights, strict=True)):
        entering = rows * mask(depth) if mask and rows is not None else rows
        out = _aggregated(layer, own["weight"], operations, entering, use)
        if layer.heads:
            out = use.call(operations.attend(depth), out, own["att_src"], own["att_dst"])
        if "self_weight" in own:
            out = out + (operations.own if entering is None else _by(entering, use))(own["self_weight"])
        if "bias" in own:
            out = out + own["bias"]
        if layer.is_last:
            yield out
            return
        if "norm_scale" in own:
            out = _normalise(out, operations.epsilon, use) * own["norm_scale"] + own["norm_shift"]
        out = use.call(Elu(), out) if layer.heads else use.relu(out)
        rows = out + rows if layer.is_residual else out
        yield rows


def _aggregated(layer: Layer, weight: Any, operations: Operations, entering: Any, use: Tensors) -> Any:
    if entering is None:
        product = operations.weighted(weight)
        return operations.aggregate(product) if layer.order == "product first" else product
    if layer.order == "product first":
        return operations.aggregate(use.product(entering, weight))
    return use.product(operations.aggregate(entering), weight)


def _by(rows: Any, use: Tensors) -> Operation:
    return lambda weight: use.product(rows, weight)


def _normalise(rows: Any, epsilon: Any, use: Tensors) -> Any:
    """Layer normalisation of Ba, Kiros and Hinton (2016): each row has mean 0 and variance 1."""
    centred = rows - use.mean(rows)
    return centred / (use.mean(centred * centred) + epsilon) ** 0.5
