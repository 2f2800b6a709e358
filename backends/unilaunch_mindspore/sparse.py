"""Sparse times dense on a device, from the operators that every MindSpore device has: gather and add."""

from typing import Any

import numpy as np
from mindspore import Tensor, ops
from numpy.typing import NDArray


class SparseMatrix:
    """A constant sparse matrix on a device.

    Args:
        indptr: Where each row begins. (rows + 1,)
        indices: Column of each entry. (entries,)
        values: (entries,)
        shape: Rows and columns.
    """

    def __init__(
        self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]
    ) -> None:
        self.num_rows, self.dtype = shape[0], values.dtype
        self.empty = len(values) == 0
        self.rows = Tensor(np.repeat(np.arange(shape[0], dtype=np.int32), np.diff(indptr)))
        self.columns = Tensor(indices.astype(np.int32))
        self.values = Tensor(values)

    def matmat(self, rows: Tensor, values: Tensor | None = None) -> Tensor:
        """Return the product with *rows*.

        Args:
            rows: (columns, width)
            values: Values to use instead of the matrix's. (entries,)
        """
        if self.empty:
            return Tensor(np.zeros((self.num_rows, rows.shape[1]), self.dtype))
        weights = self.values if values is None else values
        terms = ops.gather(rows, self.columns, 0) * weights.reshape(-1, 1)
        return ops.unsorted_segment_sum(terms, self.rows, self.num_rows)
