"""Rounding to bfloat16: the upper half of float32's bits, to the nearest, ties to even."""

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats, Rows
from unilaunch_graph.dropout import MaskWords
from unilaunch_graph.kernels.epilogue import NOTHING, Epilogue, end


def to_bfloat16(numbers: Floats) -> NDArray[np.uint16]:
    """Return finite float32 *numbers* as bfloat16's words."""
    words = numbers.view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(words: NDArray[np.uint16]) -> Rows:
    """Return bfloat16's words as float32 numbers."""
    numbers: Rows = (words.astype(np.uint32) << 16).view(np.float32)
    return numbers


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
