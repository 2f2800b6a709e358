"""A_hat = D^-1/2 (A + I) D^-1/2 of Kipf and Welling (ICLR 2017, equation 2), with the degrees of the whole graph."""

import numpy as np
from numpy.typing import NDArray

from unilaunch_gcn.arrays import Floats, FloatType

Indptr = NDArray[np.int64]
Indices = NDArray[np.int32]


def row_scale(degrees: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return D^-1/2, where D counts the self-loop: an isolated node has 1.

    Args:
        degrees: Neighbours in the whole graph, without the node itself. (n,)
    """
    scale: NDArray[np.float64] = 1.0 / np.sqrt(degrees + 1.0)
    return scale


def edge_values(
    indptr: Indptr,
    indices: Indices,
    row: NDArray[np.float64],
    column: NDArray[np.float64],
    dtype: FloatType,
) -> Floats:
    """Return A_hat's value for each entry of a CSR block.

    Args:
        indptr: Where each row begins. (rows + 1,)
        indices: Column of each entry. (entries,)
        row: D^-1/2 of the rows. (rows,) float64
        column: D^-1/2 of the columns. (columns,) float64
        dtype: Type of the values; the product is made in float64.
    """
    values = np.repeat(row, np.diff(indptr))
    values *= column[indices]
    return values.astype(dtype, copy=False)
