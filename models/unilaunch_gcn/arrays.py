"""Names for the arrays that are passed around."""

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
