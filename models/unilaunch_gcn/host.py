"""The GCN on the host: a framework's derivatives over the operators that all frameworks share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
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
from unilaunch_gcn.features import FirstLayer, HostFeatures, SparseFeatures
from unilaunch_gcn.layers import Mode, NetworkConfig, TrainingEpoch, can_fuse, initial_weights
from unilaunch_gcn.memory import keep_freed_memory
from unilaunch_gcn.network import EPSILON, Network, Pass
from unilaunch_gcn.objective import Objective, TrainingLoss, objective_of
from unilaunch_gcn.pruning import PrunedAggregation, PrunedLayer, prune
from unilaunch_gcn.tensors import Tensors
from unilaunch_graph.arrays import Floats
from unilaunch_graph.dropout import MaskWords, mask_words, scale_of_kept
from unilaunch_graph.exchange.halo import HaloExchange, RowHalo
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.kernels.choice import Kernels, Products, choose_kernels, choose_products
from unilaunch_graph.kernels.portable import Epilogue, Nonlinearity
from unilaunch_graph.operators.attention import Attention, EdgeDropout, additive_scores
from unilaunch_graph.operators.edges import choose_edges
from unilaunch_graph.operators.row_blocks import make_pool
from unilaunch_graph.partition.part import Part, merge_in_edges


class Product:
    """rows @ weight; one object for each call.

    Args:
        products: What computes it.
    """

    def __init__(self, products: Products) -> None:
        self.products = products
        self.operands: tuple[Any, Any] = (None, None)

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return rows @ weight."""
        rows, weight = inputs
        self.operands = self.products.operand(rows), self.products.operand(weight)
        return self.products.product(*self.operands)

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:  # noqa: ARG002
        """Return the gradients of the rows and of the weight."""
        rows, weight = self.operands
        upstream = self.products.operand(gradient)
        return self.products.product(upstream, weight.T), self.products.product(rows.T, upstream)


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


class LayerPlan(NamedTuple):
    """What a layer does in one epoch.

    Attributes:
        aggregate: A_hat; None: the rows that enter have been aggregated.
        relu: Whether ReLU follows: in all layers but the last.
        words: The mask of the dropout that follows, if there is one.
        scale: What the dropout of the rows that enter has multiplied them by.
        before: The factors of the gradient that goes back, with which the layer before begins. (rows, 1)
    """

    aggregate: Aggregation | PrunedAggregation | None
    relu: bool
    words: MaskWords | None
    scale: float
    before: Floats | None


class FusedLayer:
    """dropout(ReLU(A_hat H W)), a function of H and W; of W alone where H is constant. One object for each call.

    Args:
        plan: What it does.
        kernels: What drops out.
        products: What multiplies.
        constant: H, if it is constant.
    """

    def __init__(
        self, plan: LayerPlan, kernels: Kernels, products: Products, constant: HostFeatures | SparseFeatures | None
    ) -> None:
        self.plan, self.kernels, self.products, self.constant = plan, kernels, products, constant
        self.entering: Any = constant

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the rows that leave the layer."""
        *rows, weight = inputs
        aggregate, relu, words = self.plan[:3]
        if rows:
            self.entering = HostFeatures(rows[0], self.products)
        if aggregate:
            then = Nonlinearity(relu, words)
            return aggregate.of_product(lambda epilogue: self.entering.matmat(weight, epilogue), then)
        out: Floats = self.entering.matmat(weight, Epilogue(relu=relu and not words))
        return self.kernels.activate(out, words) if words else out

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:  # noqa: ARG002
        """Return the gradients of the sums that H was made of by ReLU and dropout, and of W."""
        *rows, weight = inputs
        if aggregate := self.plan.aggregate:
            # Where ReLU follows, the layer behind it has multiplied the gradient.
            gradient = (aggregate.rmatmat_scaled if self.plan.relu else aggregate.rmatmat)(gradient)
        if self.constant:
            return [self.constant.rmatmat(gradient)]
        ends = Epilogue(self.plan.before, where=rows[0], scale=self.plan.scale)
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
        self.epsilon = tensors.tensor(np.full((1, 1), EPSILON, config.dtype))
        self.loss = TrainingLoss(problem.objective, problem.trained_part, config.dtype)
        self.trained_features = problem.first_layer.pruned(problem.pruned[0]) if problem.pruned else problem.first_layer

    @override
    def forward(self, mode: Mode) -> "HostPass":
        first_layer = self.trained_features if isinstance(mode, TrainingEpoch) else self.problem.first_layer
        return HostPass(self.problem, mode, first_layer.operators(mode), self.tensors, self.epsilon)

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
        problem: The part, and the operators on it.
        mode: What it is for.
        features: What the first layer's weights are multiplied by.
        tensors: The framework.
        epsilon: What keeps a norm from dividing by zero. (1, 1)
    """

    def __init__(
        self, problem: Problem, mode: Mode, features: tuple[LinearOperator, LinearOperator], tensors: Tensors,
        epsilon: Any,
    ) -> None:  # fmt: skip
        super().__init__(problem.config.layers, features, tensors, epsilon)
        self.problem, self.mode = problem, mode
        self.pruned = problem.pruned if isinstance(mode, TrainingEpoch) else ()

    def fused(self, depth: int) -> FusedLayer:
        """Return a layer as one step."""
        problem, layer = self.problem, self.layers[depth]
        words = None if layer.is_last else problem.mask(self.mode, depth + 1)
        scale = scale_of_kept(problem.config.dropout) if problem.config.drops(self.mode) else 1.0
        below = self._sparse(depth - 1) if depth else None
        before = below.back_factors if below else None
        plan = LayerPlan(self._sparse(depth), relu=not layer.is_last, words=words, scale=scale, before=before)
        constant = None if depth else cast("HostFeatures | SparseFeatures", self.features[0])
        return FusedLayer(plan, problem.kernels, problem.products, constant)

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
