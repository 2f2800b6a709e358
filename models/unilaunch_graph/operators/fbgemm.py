"""Sparse times dense by FBGEMM, which torch has for its embeddings: more than twice as fast as SciPy's.

A row of W H is the sum of the rows of H that W's entries point to: an embedding bag. FBGEMM makes a kernel for the
width and the processor at hand, keeps the sum in registers, and fetches ahead the rows that come next (Khudia et al.,
FBGEMM, 2021). MindSpore's ranks use it as torch's do: it works on the host's arrays.
"""

import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from unilaunch_graph.arrays import Rows

# A part's arrays are mapped from files that nothing here writes to.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def product(indptr: NDArray[np.int32], indices: NDArray[np.int32], values: Rows | None) -> Callable[[Rows], Rows]:
    """Return the product with a matrix as a function. (columns, width) float32 -> (rows, width) float32

    Args:
        indptr: Where each row begins. (rows + 1,)
        indices: Column of each entry.
        values: Each entry's; None if all are 1.
    """
    ends, columns = torch.from_numpy(indptr), torch.from_numpy(indices)
    weights = None if values is None else torch.from_numpy(values)

    def multiply(rows: Rows) -> Rows:
        if not rows.shape[1]:  # FBGEMM refuses them; a rank has none where columns are fewer than ranks
            return np.empty((len(indptr) - 1, 0), np.float32)
        bags = torch.embedding_bag(torch.from_numpy(rows), columns, ends, False, 0, False, weights, True)
        summed: Rows = bags[0].numpy()
        return summed

    return multiply
