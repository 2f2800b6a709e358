"""The steps of a layer that know their own derivative, on host arrays: product, ReLU, elu and dropout."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from unilaunch_graph.arrays import Floats
from unilaunch_graph.dropout import MaskWords
from unilaunch_graph.kernels.choice import Kernels, Products


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


class Activation:
    """ReLU, then dropout if there are words of a mask. Where the result is above 0, both have let the number pass.

    Args:
        kernels: What computes it.
        words: What the mask is made of.
    """

    def __init__(self, kernels: Kernels, words: MaskWords | None = None) -> None:
        self.kernels, self.words = kernels, words

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return max(0, rows), or that times the mask."""
        return self.kernels.activate(inputs[0], self.words)

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:  # noqa: ARG002
        """Return the gradient of the rows."""
        return [self.kernels.pass_positive(out, gradient, self.words.scale if self.words else 1.0)]


class Elu:
    """x where it is above 0, else exp(x) - 1 (Clevert, Unterthiner and Hochreiter, ICLR 2016, equation 15)."""

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return elu of each number of the only input."""
        (rows,) = inputs
        out: Floats = np.where(rows > 0, rows, np.expm1(np.minimum(rows, 0)))
        return out

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:
        """Return the gradient of the numbers."""
        return [gradient * np.where(inputs[0] > 0, 1, out + 1)]


class Dropout:
    """The rows times a mask, which is made anew in backward and never stored.

    Args:
        kernels: What computes it.
        words: What the mask is made of.
    """

    def __init__(self, kernels: Kernels, words: MaskWords) -> None:
        self.kernels, self.words = kernels, words

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the rows times the mask."""
        return self.kernels.drop_out(inputs[0], self.words)

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:  # noqa: ARG002
        """Return the gradient of the rows."""
        return [self.kernels.drop_out(gradient, self.words)]
