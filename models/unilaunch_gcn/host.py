"""The GCN on the host: a framework's derivatives over the operators that all frameworks share.

First the features: X @ W of the owned nodes, A_hat X, which is made once, and the dropout of an epoch. Then the
functions between two layers, and the network.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from mmap import MADV_DONTNEED, mmap
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.aggregation import (
    Aggregation,
    ColumnSwitch,
    aggregation_over_columns,
    aggregation_over_halo,
)
from unilaunch_gcn.layers import Mode, NetworkConfig, TrainingEpoch, can_fuse, initial_weights
from unilaunch_gcn.memory import keep_freed_memory
from unilaunch_gcn.network import Network, Pass
from unilaunch_gcn.objective import Objective, TrainingLoss, objective_of
from unilaunch_gcn.pruning import PrunedAggregation, PrunedLayer, Selection, prune
from unilaunch_gcn.tensors import Tensors
from unilaunch_graph.arrays import Floats, Rows
from unilaunch_graph.data.graph import Features
from unilaunch_graph.dropout import MaskWords, entry_mask, mask_words, scale_of_kept
from unilaunch_graph.exchange.halo import HaloExchange, RowHalo
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.kernels.choice import Kernels, Products, choose_kernels, choose_products
from unilaunch_graph.kernels.portable import NOTHING, Epilogue, Nonlinearity, end
from unilaunch_graph.operators.attention import Attention, EdgeDropout, additive_scores
from unilaunch_graph.operators.edges import choose_edges
from unilaunch_graph.operators.row_blocks import make_pool
from unilaunch_graph.partition.part import Part, merge_in_edges

#: Columns of sparse features that are aggregated at a time, as a dense block; and of dense ones.
_COLUMNS, _DENSE_COLUMNS = 256, 32
#: Rows of mapped features that are held while columns are taken.
_ROWS = 8192


class SparseFeatures:
    """X @ W for a sparse X on the host."""

    def __init__(self, features: sp.csr_array) -> None:
        self.features = features

    def matmat(self, rows: Rows, epilogue: Epilogue = NOTHING) -> Rows:
        """Return X @ W, then what the epilogue makes of it. (num_owned, width)"""
        product: Rows = self.features @ rows
        end(product, epilogue)
        return product

    def rmatmat(self, rows: Rows) -> Rows:
        """Return X.T @ G; SciPy multiplies by the transposed view, in the order of X's rows. (num_features, width)"""
        product: Rows = self.features.T @ np.ascontiguousarray(rows)
        return product


class HostFeatures:
    """X @ W for a dense X on the host.

    Args:
        features: X.
        products: What multiplies.
        words: X is dropped out by this mask; None: no dropout.
    """

    def __init__(self, features: Rows, products: Products, words: MaskWords | None = None) -> None:
        self.features, self.products, self.words = features, products, words

    @cached_property
    def operand(self) -> Any:
        """X as the products take it."""
        if self.words:
            return self.products.dropped(self.features, self.words)
        return self.products.operand(self.features)

    def matmat(self, rows: Rows, epilogue: Epilogue = NOTHING) -> Rows:
        """Return X @ W, then what the epilogue makes of it. (num_owned, width)"""
        return self.products.product(self.operand, self.products.operand(rows), epilogue)

    def rmatmat(self, rows: Rows) -> Rows:
        """Return X.T @ G. (num_features, width)"""
        return self.products.product(self.operand.T, self.products.operand(rows))

    def gradients(self, weight: Rows, gradient: Rows, epilogue: Epilogue) -> tuple[Rows, Rows]:
        """Return G @ W.T, then what the epilogue makes of it, and X.T @ G: the gradients of X and of W."""
        upstream = self.products.operand(gradient)
        of_rows = self.products.product(upstream, self.products.operand(weight).T, epilogue)
        return of_rows, self.products.product(self.operand.T, upstream)


def first_features(
    config: NetworkConfig, part: Part, aggregate: Callable[[Rows], Rows]
) -> tuple[Features, Features | None]:  # fmt: skip
    """Return X, and A_hat X if it is made once, else None; all ranks must call it.

    A network that owns the part's features has no X beside A_hat X, unless a node's own row has weights: then both are
    A_hat X, in the place of X.

    Args:
        config: What is trained.
        part: The part.
        aggregate: Multiplies rows by A_hat.
    """
    features: Features = part.features.astype(config.dtype, copy=False)
    first = config.layers[0]
    if isinstance(features, sp.csr_array) and first.order == "aggregation first":
        features = features.toarray()  # it is narrower than the hidden layer: small
    if first.order != "aggregated once":
        return features, None
    in_place = config.owns_features and not first.has_self_weight
    aggregated = aggregate_features(aggregate, features, in_place=in_place)
    return (aggregated if in_place else features), aggregated


def aggregate_features(aggregate: Callable[[Rows], Rows], features: Features, *, in_place: bool) -> Features:
    """Return A_hat X, sparse if X is; made in blocks of columns, for the halo rows of all would be as large as X.

    Args:
        aggregate: Multiplies rows by A_hat.
        features: X.
        in_place: A_hat X takes the memory of X, if X is dense and not mapped from a file.
    """
    if not isinstance(features, sp.csr_array):
        is_in_memory = features.flags.writeable and not isinstance(features.base, mmap)
        aggregated = features if in_place and is_in_memory else np.empty(features.shape, features.dtype)
        for begin in range(0, features.shape[1], _DENSE_COLUMNS):
            block = slice(begin, begin + _DENSE_COLUMNS)
            aggregated[:, block] = aggregate(_columns(features, block))
        return aggregated
    columns = features.tocsc()
    blocks = [
        sp.csr_array(aggregate(columns[:, begin : begin + _COLUMNS].toarray()))
        for begin in range(0, features.shape[1], _COLUMNS)
    ]
    return sp.csr_array(sp.hstack(blocks, format="csr"))


def _columns(features: Floats, block: slice) -> Rows:
    """Return some columns as an array of their own; pages that are mapped from a file are not held meanwhile."""
    taken = np.empty((len(features), len(range(features.shape[1])[block])), features.dtype)
    for begin in range(0, len(features), _ROWS):
        rows = slice(begin, begin + _ROWS)
        taken[rows] = features[rows, block]
        if isinstance(features.base, mmap):
            features.base.madvise(MADV_DONTNEED)
    return taken


class FirstLayer:
    """The features of one part.

    Args:
        config: What is trained.
        part: The part.
        aggregate: A_hat, or attention.
        kernels: What drops out.
        products: What multiplies.
    """

    def __init__(
        self, config: NetworkConfig, part: Part, aggregate: "Aggregation | GraphAttention", kernels: Kernels,
        products: Products,
    ) -> None:  # fmt: skip
        self.aggregate: Aggregation | GraphAttention | PrunedAggregation = aggregate
        self.config, self.nodes, self.kernels, self.products = config, part.owned, kernels, products
        self.order = config.layers[0].order
        self.features, self.aggregated = first_features(config, part, aggregate.matmat)
        self.leaving: Selection | None = None
        self.constant: dict[int, HostFeatures] = {}

    def pruned(self, layer: PrunedLayer) -> "FirstLayer":
        """Return the same features with the rows of a training epoch only.

        Args:
            layer: The rows.
        """
        made, entering = copy(self), layer.entering
        made.aggregate = layer.aggregate
        uses_own = self.config.layers[0].has_self_weight
        if self.aggregated is not None:
            made.aggregated, entering = _rows(self.aggregated, layer.leaving), layer.leaving
        elif uses_own:
            made.leaving = layer.selection
        made.nodes = self.nodes[entering]
        if self.aggregated is None or uses_own:
            made.features = _rows(self.features, entering)
        return made

    def operators(self, mode: Mode) -> tuple[LinearOperator, LinearOperator]:
        """Return what the first layer's weights are multiplied by; all ranks must call it.

        Returns:
            What *weight* is, in the layer's order, and what *self_weight* is: X, the rows that leave the layer.
        """
        keys = self.config.dropout_keys(mode, 0)
        if keys and self.order == "product first" and not self.leaving and not isinstance(self.features, sp.csr_array):
            masked = HostFeatures(self.features, self.products, self._words(self.features, keys))
            return masked, masked
        own = self._dropped(self.features, keys) if keys else self.features
        weighted = own if self.aggregated is None else self.aggregated
        if self.order == "aggregation first":
            weighted = self.aggregate.matmat(own)
        return self._operator(weighted), self._operator(self.leaving.matmat(own) if self.leaving else own)

    def _dropped(self, features: Features, keys: tuple[int, int]) -> Features:
        if isinstance(features, sp.csr_array):
            rows = np.repeat(self.nodes, np.diff(features.indptr))
            mask = entry_mask(rows, features.indices, keys, self.config.dropout, features.dtype)
            return sp.csr_array((features.data * mask, features.indices, features.indptr), shape=features.shape)
        return self.kernels.drop_out(features, self._words(features, keys))

    def _words(self, features: Floats, keys: tuple[int, int]) -> MaskWords:
        return mask_words(self.nodes, features.shape[1], keys, self.config.dropout)

    def _operator(self, features: Features) -> LinearOperator:
        if isinstance(features, sp.csr_array):
            return SparseFeatures(features)
        made = HostFeatures(features, self.products)
        if features is not self.features and features is not self.aggregated:
            return made
        if id(features) not in self.constant:
            self.constant[id(features)] = made  # it may hold them rounded
        return self.constant[id(features)]


def _rows(features: Features, chosen: NDArray[np.int64]) -> Features:
    """Return some rows; the array itself if they are all of them."""
    return features if len(chosen) == features.shape[0] else features[chosen]


class Product:
    """rows @ weight; one object for each call.

    Args:
        products: What computes it.
    """

    def __init__(self, products: Products) -> None:
        self.products = products

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return rows @ weight."""
        self.rows = HostFeatures(inputs[0], self.products)
        return self.rows.matmat(inputs[1])

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:  # noqa: ARG002
        """Return the gradients of the rows and of the weight."""
        return self.rows.gradients(inputs[1], gradient, NOTHING)


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of one array.

    Attributes:
        value: Returns the result.
        derivative: Returns the gradient of the array from the array, the result, and the gradient of the result.
    """

    value: Callable[[Floats], Floats]
    derivative: Callable[[Floats, Floats, Floats], Floats]

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the result."""
        return self.value(inputs[0])

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:
        """Return the gradient of the array."""
        return [self.derivative(inputs[0], out, gradient)]


def activation(kernels: Kernels, words: MaskWords | None = None) -> RowFunction:
    """Return ReLU, then dropout if there are words of a mask. Where the result is above 0, both let the number pass."""
    scale = words.scale if words else 1.0
    return RowFunction(
        lambda rows: kernels.activate(rows, words), lambda _, out, gradient: kernels.pass_positive(out, gradient, scale)
    )


#: x where it is above 0, else exp(x) - 1 (Clevert, Unterthiner and Hochreiter, ICLR 2016, equation 15).
ELU = RowFunction(
    lambda rows: np.where(rows > 0, rows, np.expm1(np.minimum(rows, 0))),
    lambda rows, out, gradient: gradient * np.where(rows > 0, 1, out + 1),
)


def dropout(kernels: Kernels, words: MaskWords) -> RowFunction:
    """Return the product with a mask, which is made anew in backward and never stored."""
    return RowFunction(
        lambda rows: kernels.drop_out(rows, words), lambda _, __, gradient: kernels.drop_out(gradient, words)
    )


@dataclass(slots=True)
class FusedLayer:
    """dropout(ReLU(A_hat H W)), a function of H and W; of W alone where H is constant. One object for each call.

    Attributes:
        problem: The operators.
        constant: H, if it is constant.
        aggregate: A_hat; None: the rows that enter have been aggregated.
        relu: Whether ReLU follows: in all layers but the last.
        words: The mask of the dropout that follows, if there is one.
        scale: What the dropout of the rows that enter has multiplied them by.
        before: The factors of the gradient that goes back, with which the layer before begins. (rows, 1)
        entering: H.
    """

    problem: "Problem"
    constant: "HostFeatures | SparseFeatures | None"
    aggregate: Aggregation | PrunedAggregation | None
    relu: bool
    words: MaskWords | None
    scale: float
    before: Floats | None
    entering: Any = None

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the rows that leave the layer."""
        *rows, weight = inputs
        self.entering = HostFeatures(rows[0], self.problem.products) if rows else self.constant
        if self.aggregate:
            then = Nonlinearity(self.relu, self.words)
            return self.aggregate.of_product(lambda epilogue: self.entering.matmat(weight, epilogue), then)
        out: Floats = self.entering.matmat(weight, Epilogue(relu=self.relu and not self.words))
        return self.problem.kernels.activate(out, self.words) if self.words else out

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:  # noqa: ARG002
        """Return the gradients of the sums that H was made of by ReLU and dropout, and of W."""
        *rows, weight = inputs
        if self.aggregate:
            # Where ReLU follows, the layer behind it has multiplied the gradient.
            gradient = (self.aggregate.rmatmat_scaled if self.relu else self.aggregate.rmatmat)(gradient)
        if self.constant:
            return [self.constant.rmatmat(gradient)]
        ends = Epilogue(self.before, where=rows[0], scale=self.scale)
        gradients: tuple[Floats, Floats] = self.entering.gradients(weight, gradient, ends)
        return gradients


#: Slope of the leaky ReLU below 0, as in the paper.
_SLOPE = 0.2


class GraphAttention:
    """The way from the owned rows to the sums over the in-edges of one part, each node's own loop included.

    It is a linear operator too: owned rows to owned and halo rows, as `RowHalo`.

    Args:
        part: This rank's part.
        collectives: The way to the other parts.
        threads: Threads that share the sums.
        config: What is trained.
        meter: Counts the bytes that arrive, and the time spent waiting.
    """

    def __init__(self, part: Part, collectives: Collectives, threads: int, config: NetworkConfig, meter: Meter) -> None:
        self.config, self.num_owned = config, part.num_owned
        self.nodes = np.concatenate((part.owned, part.halo))
        halo = RowHalo(part, collectives, meter)
        self.matmat, self.rmatmat = halo.matmat, halo.rmatmat
        self.edges = choose_edges(merge_in_edges(part).ends, part.num_owned, len(self.nodes), self_loops=True).edges
        self.pool = make_pool(threads)

    def of_layer(self, depth: int, mode: Mode) -> Attention:
        """Return the attention of one layer."""
        config, dropout = self.config, None
        if keys := config.dropout_keys(mode, depth):
            low, high = keys
            dropout = EdgeDropout(self.nodes, self.num_owned, high << 32 | low, config.dropout, config.dtype)
        return Attention(self.edges, additive_scores(_SLOPE), self.pool, dropout)


@dataclass(frozen=True, slots=True)
class Problem:
    """What a network on the host is made from: a part, and the operators that the frameworks share.

    Attributes:
        config: What is trained.
        part: This rank's part.
        objective: The loss and its metrics.
        aggregate: A_hat over all parts, or attention.
        first_layer: The features.
        kernels: What activates and drops out.
        products: What multiplies.
        pruned: The layers of a training epoch; none: each has all owned rows.
    """

    config: NetworkConfig
    part: Part
    objective: Objective
    aggregate: Aggregation | GraphAttention
    first_layer: FirstLayer
    kernels: Kernels
    products: Products
    pruned: Sequence[PrunedLayer] = ()

    def mask(self, mode: Mode, depth: int) -> MaskWords | None:
        """Return the dropout mask of the rows that enter layer *depth*; None: nothing is dropped. (rows, width_in)"""
        config, keys = self.config, self.config.dropout_keys(mode, depth)
        if not keys:
            return None
        nodes = self.part.owned[self.pruned[depth].entering] if self.pruned else self.part.owned
        return mask_words(nodes, config.layers[depth].width_in, keys, config.dropout)

    @property
    def trained_part(self) -> Part:
        """The part with the labels and the split of the nodes whose scores a training epoch computes."""
        if not self.pruned:
            return self.part
        scored = self.pruned[-1].leaving
        return replace(self.part, labels=self.part.labels[scored], split=self.part.split[scored])


class HostNetwork(Network):
    """The GCN of one rank on the host.

    Args:
        problem: The part, and the operators on it.
        tensors: The framework.
    """

    def __init__(self, problem: Problem, tensors: Tensors) -> None:
        config = problem.config
        super().__init__(config, problem.part, problem.objective, tensors)
        self.problem = problem
        self.flat: Floats = initial_weights(config.layers, config.seed, config.dtype)
        self.loss = TrainingLoss(problem.objective, problem.trained_part, config.dtype)
        self.trained_features = problem.first_layer.pruned(problem.pruned[0]) if problem.pruned else problem.first_layer

    @override
    def forward(self, mode: Mode) -> "HostPass":
        return HostPass(self, mode)

    @override
    def gradient(self, epoch: int) -> NDArray[np.float64]:
        value = 0.0

        def gradient_of(scores: Any) -> Any:
            nonlocal value
            array = self.tensors.array(scores)
            if self.layers[-1].heads:
                array = array.copy()  # the derivative of attention needs its result, and the loss overwrites this
            value, gradient = self.loss.value_and_gradient(array)
            return self.tensors.tensor(gradient)

        gradients = self._gradients(TrainingEpoch(epoch), gradient_of)
        arrays = [self.tensors.array(gradient).ravel() for gradient in gradients]
        return np.concatenate([[value, 0.0], *arrays], dtype=np.float64)

    @override
    def _scores(self, run: Pass, weights: Sequence[Any]) -> Any:
        if not can_fuse(self.layers):
            return super()._scores(run, weights)
        rows: list[Any] = []
        for depth, weight in enumerate(weights):
            rows = [self.tensors.call(cast("HostPass", run).fused(depth), *rows, weight)]
        return rows[0]


class HostPass(Pass):
    """A forward pass on the host.

    Args:
        network: The network.
        mode: What it is for.
    """

    def __init__(self, network: HostNetwork, mode: Mode) -> None:
        problem, is_training = network.problem, isinstance(mode, TrainingEpoch)
        super().__init__(network, (network.trained_features if is_training else problem.first_layer).operators(mode))
        self.problem, self.mode, self.pruned = problem, mode, problem.pruned if is_training else ()

    def fused(self, depth: int) -> FusedLayer:
        """Return a layer as one step."""
        problem, layer = self.problem, self.layers[depth]
        words = None if layer.is_last else problem.mask(self.mode, depth + 1)
        scale = scale_of_kept(problem.config.dropout) if problem.config.drops(self.mode) else 1.0
        below = self._sparse(depth - 1) if depth else None
        before = below.back_factors if below else None
        constant = None if depth else cast("HostFeatures | SparseFeatures", self.features[0])
        return FusedLayer(problem, constant, self._sparse(depth), not layer.is_last, words, scale, before)

    def _sparse(self, depth: int) -> Aggregation | PrunedAggregation | None:
        """Return what a fused layer aggregates with; None: its features have been aggregated."""
        if self.layers[depth].order != "product first":
            return None
        return cast("Aggregation | PrunedAggregation", self._operator(depth))

    def _operator(self, depth: int) -> Aggregation | PrunedAggregation | GraphAttention:
        return self.pruned[depth].aggregate if self.pruned else self.problem.aggregate

    @override
    def aggregate(self, depth: int, rows: Any) -> Any:
        return self.tensors.operation(self._operator(depth))(rows)

    @override
    def leaving(self, depth: int, rows: Any) -> Any:
        return self.tensors.operation(self.pruned[depth].selection)(rows) if self.pruned else rows

    @override
    def attend(self, depth: int, rows: Any, own: Mapping[str, Any]) -> Any:
        attention = cast("GraphAttention", self.problem.aggregate).of_layer(depth, self.mode)
        return self.tensors.call(attention, rows, own["att_src"], own["att_dst"])

    @override
    def product(self, rows: Any, weight: Any) -> Any:
        return self.tensors.call(Product(self.problem.products), rows, weight)

    @override
    def activated(self, depth: int, rows: Any) -> Any:
        return self.tensors.call(ELU if self.layers[depth].heads else activation(self.problem.kernels), rows)

    @override
    def dropped(self, depth: int, rows: Any) -> Any:
        words = self.problem.mask(self.mode, depth)
        return self.tensors.call(dropout(self.problem.kernels, words), rows) if words else rows

    @override
    def entering(self, depth: int, rows: Any) -> Any:
        return self.tensors.call(activation(self.problem.kernels, self.problem.mask(self.mode, depth)), rows)


def host_problem(collectives: Collectives, threads: int, config: NetworkConfig, part: Part, meter: Meter) -> Problem:
    """Return the operators on host arrays that both frameworks share."""
    keep_freed_memory()
    aggregate: Aggregation | GraphAttention
    if config.conv == "gat":
        aggregate = GraphAttention(part, collectives, threads, config, meter)
    elif part.adjacency:
        switch = ColumnSwitch(part, part.adjacency, collectives, meter)
        aggregate = aggregation_over_columns(part, switch, threads, config.conv, config.dtype)
    else:
        halo = HaloExchange(part, collectives, meter, rounds=config.is_bfloat16)
        aggregate = aggregation_over_halo(part, halo, threads, config.conv, config.dtype)
    kernels = choose_kernels(config.dtype, part.num_edges, threads)
    products = choose_products(kernels, is_bfloat16=config.is_bfloat16)
    first_layer = FirstLayer(config, part, aggregate, kernels, products)
    return Problem(config, part, objective_of(part), aggregate, first_layer, kernels, products)


def training_problem(
    collectives: Collectives, threads: int, config: NetworkConfig, part: Part, meter: Meter
) -> Problem:
    """Return what `host_problem` does, with the rows that a training epoch needs; all ranks must call it."""
    problem = host_problem(collectives, threads, config, part, meter)
    if not isinstance(problem.aggregate, Aggregation):
        return problem
    return replace(problem, pruned=prune(part, problem.aggregate, [layer.exchanges for layer in config.layers]))
