"""The passes of kernels.c by numpy: for any float type, and where there is no compiler."""

import numpy as np

from unilaunch_graph.arrays import FloatType, Rows
from unilaunch_graph.dropout import MaskWords
from unilaunch_graph.kernels.epilogue import IDENTITY, NOTHING, Epilogue, Nonlinearity, end
from unilaunch_graph.kernels.rounding import from_bfloat16, to_bfloat16


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
