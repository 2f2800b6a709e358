"""Names for the arrays that are passed around, and what is asked of the library whose they are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: float32 or float64, as `--precision` says.
Floats = NDArray[np.floating[Any]]
FloatType = np.dtype[np.floating[Any]]
#: One row for each node. (nodes, width)
Rows = Floats
Ids = NDArray[np.int64]
Indices = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Arrays:
    """What numpy, torch and MindSpore each call by another name.

    Attributes:
        concatenate: Returns arrays, one after the other along an axis.
        empty: Returns an array of a shape, of the type and at the place of another.
    """

    concatenate: Callable[[list[Any], int], Any]
    empty: Callable[[tuple[int, int], Any], Any]
