"""The passes of kernels.c by numpy: for any float type, and where there is no compiler.

`Epilogue` and `Nonlinearity` say what kernels of both kinds do with rows before they are stored.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats, FloatType, Rows
from unilaunch_graph.dropout import MaskWords


class Epilogue(NamedTuple):
    """What becomes of rows: first *where*, then *factors*, then *relu*. What is not a number passes each step.

    Attributes:
        factors: Each row's factor; None: 1. (rows, 1)
        relu: Negative numbers become 0.
        where: The derivative of ReLU: where this is 0 or less the result is 0, else *scale* times the number. None: the
            number itself. (rows, width)
        scale: What dropout has multiplied by.
        rounds: The rows may be returned as bfloat16's words.
    """

    factors: Rows | None = None
    relu: bool = False
    where: Rows | None = None
    scale: float = 1.0
    rounds: bool = False


NOTHING = Epilogue()


class Nonlinearity(NamedTuple):
    """What follows a layer's sums; what is not a number passes.

    Attributes:
        relu: Negative numbers become 0.
        mask: Then dropout; None: no dropout.
    """

    relu: bool = False
    mask: MaskWords | None = None


IDENTITY = Nonlinearity()


def end(rows: Rows, epilogue: Epilogue) -> None:
    """Do the epilogue of rows in their place, by numpy. (rows, width)"""
    if epilogue.where is not None:
        rows *= rows.dtype.type(epilogue.scale)
        rows[epilogue.where <= 0] = 0
    if epilogue.factors is not None:
        rows *= epilogue.factors
    if epilogue.relu:
        np.maximum(rows, 0, out=rows)


def to_bfloat16(numbers: Floats) -> NDArray[np.uint16]:
    """Return finite float32 *numbers* as bfloat16's words."""
    words = numbers.view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(words: NDArray[np.uint16]) -> Rows:
    """Return bfloat16's words as float32 numbers."""
    numbers: Rows = (words.astype(np.uint32) << 16).view(np.float32)
    return numbers


class PortableKernels:
    """Dense products and passes over rows.

    Args:
        dtype: Type of the rows.
    """

    def __init__(self, dtype: FloatType) -> None:
        self.dtype = dtype

    def operand(self, array: Rows) -> Rows:
        """Return what `product` takes for an array: itself."""
        return array

    def dropped(self, array: Rows, words: MaskWords) -> Rows:
        """Return what `product` takes for an array times a dropout mask."""
        return self.drop_out(array, words)

    def product(self, left: Rows, right: Rows, epilogue: Epilogue = NOTHING) -> Rows:
        """Return left @ right, ended. (rows, depth), (depth, width) -> (rows, width)"""
        product: Rows = left @ right
        end(product, epilogue)
        return product

    def scaled(self, rows: Rows, factors: Rows) -> Rows:
        """Return the rows, each times its factor. (rows, width), (rows, 1)"""
        return rows * factors

    def rounded(self, rows: Rows, factors: Rows | None = None) -> Rows:
        """Return finite rows, each times its factor, rounded to bfloat16. (rows, width), (rows, 1)"""
        return from_bfloat16(to_bfloat16(np.ascontiguousarray(rows) if factors is None else rows * factors))

    def drop_out(self, rows: Rows, words: MaskWords) -> Rows:
        """Return the rows times a dropout mask. (rows, width)"""
        return words.times(rows)

    def activate(self, rows: Rows, words: MaskWords | None) -> Rows:
        """Return max(0, rows), times a dropout mask if there is one. (rows, width)"""
        positive: Rows = np.maximum(rows, 0)
        return positive if words is None else self.drop_out(positive, words)

    def pass_positive(self, rows: Rows, gradient: Rows, scale: float) -> Rows:
        """Return 0 where *rows* is 0 or less, else scale * gradient. (rows, width)"""
        return np.where(rows <= 0, 0, gradient * rows.dtype.type(scale))

    def finish(
        self, out: Rows, own: Rows | None, loops: Rows | None, left: Rows | None, then: Nonlinearity = IDENTITY
    ) -> None:
        """Make left (out + loops own) of *out*, then what follows.

        Args:
            out: Changed in place. (rows, width)
            own: None: no loops. (rows, width)
            loops: Weight of each row's loop; None: each is 1. (rows, 1)
            left: Factor of each row; None: each is 1. (rows, 1)
            then: ReLU, and the dropout of these rows.
        """
        if own is not None:
            out += own if loops is None else own * loops
        end(out, Epilogue(left, then.relu))
        if then.mask:
            out[...] = self.drop_out(out, then.mask)


class RoundedProducts:
    """Products of rounded numbers by numpy, in float32 and then rounded."""

    def operand(self, array: Floats) -> Floats:
        """Return the array, rounded to bfloat16."""
        return from_bfloat16(to_bfloat16(np.ascontiguousarray(array)))

    def dropped(self, array: Floats, words: MaskWords) -> Floats:
        """Return what `product` takes for an array times a dropout mask."""
        return self.operand(words.times(array))

    def product(self, left: Floats, right: Floats, epilogue: Epilogue = NOTHING) -> Rows:
        """Return left @ right, rounded, then ended. (rows, depth), (depth, width) -> (rows, width) float32"""
        product = self.operand(left @ right)
        end(product, epilogue)
        return product
