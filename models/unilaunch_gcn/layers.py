"""The layers of a training, and the weights in them; which options decide them is in `options`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from unilaunch_gcn.options import count_heads
from unilaunch_graph.arrays import Floats, FloatType
from unilaunch_graph.dropout import stream_keys

if TYPE_CHECKING:
    from unilaunch_gcn.spec import TrainingSpec


@dataclass(frozen=True, slots=True)
class Parameter:
    """One array of weights.

    Attributes:
        name: "weight", "self_weight", "att_src", "att_dst", "bias", "norm_scale" or "norm_shift".
        shape: (width_in, width_out) of the first two, (heads, channels) of the next two, (width_out,) of the others.
        start: "glorot", "zeros" or "ones".
    """

    name: str
    shape: tuple[int, ...]
    start: str

    @property
    def size(self) -> int:
        """Number of numbers."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layer:
    """One graph convolution H' = act(norm(A_hat H W + H W_self + b)) + H, of which only A_hat H W must be.

    Attributes:
        width_in: Columns of H.
        width_out: Columns of W.
        order: "product first" A_hat (H W), where that is the narrower exchange; "aggregation first" (A_hat H) W; or
            "aggregated once": A_hat X is made before the first epoch, since nothing in it changes.
        exchanges: Halo exchanges of one epoch, each *width* columns wide.
        width: Columns of an exchange.
        parameters: Its weights; those that L2 is for, of the first layer, come first.
        is_residual: H is added at the end.
        is_last: Neither norm nor act: these are the logits.
        heads: Of attention, which stands in the place of A_hat, with elu as act; 0: A_hat, and act is relu.
    """

    width_in: int
    width_out: int
    order: str
    exchanges: int
    width: int
    parameters: tuple[Parameter, ...] = ()
    is_residual: bool = False
    is_last: bool = False
    heads: int = 0

    @property
    def has_self_weight(self) -> bool:
        """Whether it has W_self."""
        return any(parameter.name == "self_weight" for parameter in self.parameters)


def plan_layers(options: "TrainingSpec", num_features: int, num_classes: int) -> list[Layer]:
    """Return the layers, first to last."""
    hidden = options.hidden * (count_heads(options) if options.conv == "gat" else 1)
    widths = [num_features, *[hidden] * (options.layers - 1), num_classes]
    return [
        _layer(options, depth, width_in, width_out, is_last=depth == options.layers - 1)
        for depth, (width_in, width_out) in enumerate(pairwise(widths))
    ]


def count_weights(layers: Sequence[Layer]) -> int:
    """Return how many weights the layers have."""
    return sum(parameter.size for layer in layers for parameter in layer.parameters)


def count_decayed(layers: Sequence[Layer]) -> int:
    """Return how many weights, from the front, L2 is for.

    They are the matrices of the first layer, as in the GCN's paper; of attention all weights, as in its paper.
    """
    if layers[0].heads:
        return count_weights(layers)
    return sum(parameter.size for parameter in layers[0].parameters if parameter.start == "glorot")


def can_fuse(layers: Sequence[Layer]) -> bool:
    """Return whether each layer is act(A_hat H W), with the product before the aggregation in all but the first."""
    return all(
        len(layer.parameters) == 1 and not layer.is_residual and (not depth or layer.order == "product first")
        for depth, layer in enumerate(layers)
    )


def _layer(options: "TrainingSpec", depth: int, width_in: int, width_out: int, *, is_last: bool) -> Layer:
    is_residual = options.residual and 0 < depth < options.layers - 1
    heads = 0 if options.conv != "gat" else 1 if is_last else count_heads(options)
    parameters = _parameters(options, width_in, width_out, heads, is_last=is_last)
    order, exchanges, width = _order(width_in, width_out, first=depth == 0, constant_input=options.dropout == 0)
    if heads:  # attention needs the products of both ends
        order, exchanges, width = "product first", 2, width_out
    return Layer(width_in, width_out, order, exchanges, width, parameters, is_residual, is_last, heads)


def _order(width_in: int, width_out: int, *, first: bool, constant_input: bool) -> tuple[str, int, int]:
    if first and constant_input:
        return "aggregated once", 0, 0
    if width_out <= width_in:
        return "product first", 2, width_out
    # Nobody asks for the gradient of the input: the first layer then sends nothing back.
    return "aggregation first", 1 if first else 2, width_in


def _parameters(
    options: "TrainingSpec", width_in: int, width_out: int, heads: int, *, is_last: bool
) -> tuple[Parameter, ...]:
    found = [Parameter("weight", (width_in, width_out), "glorot")]
    if options.conv == "sage":
        found.append(Parameter("self_weight", (width_in, width_out), "glorot"))
    if heads:
        found += [Parameter(name, (heads, width_out // heads), "glorot") for name in ("att_src", "att_dst")]
    if options.bias:
        found.append(Parameter("bias", (width_out,), "zeros"))
    if options.layer_norm and not is_last:
        found += [Parameter("norm_scale", (width_out,), "ones"), Parameter("norm_shift", (width_out,), "zeros")]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class TrainingEpoch:
    """A forward pass of a training: with the dropout of this epoch, counted from 0."""

    number: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A forward pass over all nodes, in which nothing is dropped."""


#: What a forward pass is for.
Mode = TrainingEpoch | Evaluation


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The layers and how they are trained.

    Attributes:
        layers: The layers.
        dropout: Share of the input and of the hidden layers that is dropped in training.
        seed: Seed of dropout and weights.
        dtype: Type of weights and features.
        conv: "gcn", "sage" or "gat".
        is_bfloat16: Dense products and halo rows are rounded to bfloat16.
        owns_features: The part's features are for this network alone: it may write A_hat X in their place.
    """

    layers: Sequence[Layer]
    dropout: float
    seed: int
    dtype: FloatType
    conv: str = "gcn"
    is_bfloat16: bool = False
    owns_features: bool = False

    @classmethod
    def of(cls, options: "TrainingSpec", layers: Sequence[Layer], seed: int) -> "NetworkConfig":
        """Return what the user chose."""
        is_bfloat16 = options.precision == "bfloat16"
        dtype: FloatType = np.dtype("float32" if is_bfloat16 else options.precision)
        return cls(layers, options.dropout, seed, dtype, options.conv, is_bfloat16)

    def drops(self, mode: Mode) -> bool:
        """Return whether a forward pass drops anything out."""
        return isinstance(mode, TrainingEpoch) and self.dropout > 0

    def dropout_keys(self, mode: Mode, depth: int) -> tuple[int, int] | None:
        """Return the keys of the dropout of the rows that enter layer *depth*; None: nothing is dropped."""
        return stream_keys(self.seed, mode.number, depth) if isinstance(mode, TrainingEpoch) and self.dropout else None


#: Weights that are drawn at a time.
_DRAWN = 1 << 16


def initial_weights(layers: Sequence[Layer], seed: int, dtype: FloatType) -> Floats:
    """Return the same weights on every rank and framework: matrices as Glorot and Bengio (AISTATS 2010, equation 16).

    Args:
        layers: The layers.
        seed: Seed of the weights.
        dtype: Type of the weights, which are drawn in float64 and rounded.

    Returns:
        Each layer's parameters, one after the other, in one flat buffer. (num_weights,)
    """
    weights = np.empty(count_weights(layers), dtype)
    for own, (depth, place, parameter) in zip(views(weights, layers), _places(layers), strict=True):
        _start(own.reshape(-1), parameter, np.random.Philox(key=seed, counter=[0, 0, place, depth]))
    return weights


def _places(layers: Sequence[Layer]) -> Iterator[tuple[int, int, Parameter]]:
    for depth, layer in enumerate(layers):
        for place, parameter in enumerate(layer.parameters):
            yield depth, place, parameter


def _start(weights: Floats, parameter: Parameter, bits: np.random.BitGenerator) -> None:
    """Write the first weights of a parameter, a part at a time: float64 of all would be twice as large as they are."""
    if parameter.start != "glorot":
        weights[:] = float(parameter.start == "ones")
        return
    bound, generator = np.sqrt(6.0 / sum(parameter.shape)), np.random.Generator(bits)
    for begin in range(0, len(weights), _DRAWN):
        part = weights[begin : begin + _DRAWN]
        part[:] = (2.0 * generator.random(len(part)) - 1.0) * bound


def views(flat: Any, layers: Sequence[Layer]) -> list[Any]:
    """Return each layer's parameters within *flat*, on the same memory, one after the other."""
    found, begin = [], 0
    for layer in layers:
        for parameter in layer.parameters:
            found.append(flat[begin : begin + parameter.size].reshape(parameter.shape))
            begin += parameter.size
    return found


def by_layer(arrays: Sequence[Any], layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Return what `views` returns, or as many tensors, by layer and name."""
    given = iter(arrays)
    return [{parameter.name: next(given) for parameter in layer.parameters} for layer in layers]
