"""What is done with a product's rows before they are stored, on the host."""

from typing import NamedTuple

import numpy as np

from unilaunch_graph.arrays import Rows
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
