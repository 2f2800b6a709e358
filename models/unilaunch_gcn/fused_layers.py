"""A layer as one step on host arrays, so that scaling, ReLU and their derivatives are no passes over memory.

The derivative of ReLU and dropout is taken by the step that reads their result: it makes the gradient, and knows the
result, which is 0 where nothing passes. So the gradient that reaches a step is that of its sums, and has been
multiplied by the factors that the transposed product begins with.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.features import HostFeatures, SparseFeatures
from unilaunch_gcn.layers import Layer
from unilaunch_gcn.pruning import PrunedAggregation
from unilaunch_graph.arrays import Floats
from unilaunch_graph.dropout import MaskWords
from unilaunch_graph.kernels.choice import Kernels, Products
from unilaunch_graph.kernels.epilogue import Epilogue, Nonlinearity


def can_fuse(layers: Sequence[Layer]) -> bool:
    """Return whether each layer is act(A_hat H W), with the product before the aggregation in all but the first."""
    return all(
        len(layer.parameters) == 1 and not layer.is_residual and (not depth or layer.order == "product first")
        for depth, layer in enumerate(layers)
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
