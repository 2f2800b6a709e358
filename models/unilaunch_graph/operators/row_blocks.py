"""A sparse matrix on the host, in blocks of rows that threads multiply one by one."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.arrays import FloatType, Rows

#: Rows that are multiplied at a time: the product is written while it is in the cache, and the exchange moves on.
_PIECE = 2048
#: Entries from which on FBGEMM's product earns the second that importing torch takes, where it is not there anyway.
_MANY = 1 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a matrix.

    Attributes:
        span: Which rows.
        num_entries: Entries in them.
        multiply: Returns their product. (columns of the matrix, width) -> (rows of the block, width)
    """

    span: slice
    num_entries: int
    multiply: Callable[[Rows], Rows]


class RowBlocks:
    """W, or a part of it, in blocks of rows. FBGEMM multiplies float32, SciPy all else and what is small.

    Args:
        indptr: Where each row begins. (rows + 1,)
        indices: Column of each entry. int32
        weights: Of each entry; of no length if each is 1.
        num_columns: Columns of W.
        dtype: Type of the rows that it is multiplied by.
    """

    def __init__(
        self, indptr: NDArray[np.int64], indices: NDArray[np.int32], weights: NDArray[np.float32], num_columns: int,
        dtype: FloatType,
    ) -> None:  # fmt: skip
        num_rows = len(indptr) - 1
        ends = [*range(0, num_rows, _PIECE), num_rows]
        most = max(np.diff(indptr[ends]), default=0)
        product = choose_product(dtype, len(indices), num_columns, 0 if len(weights) else most)
        self.blocks = []
        for begin, end in pairwise(ends):
            first, last = int(indptr[begin]), int(indptr[end])
            values = weights[first:last].astype(dtype, copy=False) if len(weights) else None
            local = (indptr[begin : end + 1] - first).astype(np.int32)
            self.blocks.append(Block(slice(begin, end), last - first, product(local, indices[first:last], values)))

    @property
    def filled(self) -> list[Block]:
        """The blocks that have an entry."""
        return [block for block in self.blocks if block.num_entries]


def choose_product(
    dtype: FloatType, num_entries: int, num_columns: int, most_ones: int = 0
) -> Callable[..., Callable[[Rows], Rows]]:
    """Return the way to multiply blocks of a matrix: called with indptr, indices and values, it returns a product.

    Args:
        dtype: Type of the values and of the rows.
        num_entries: Entries of all blocks together.
        num_columns: Columns of the matrix.
        most_ones: Entries of the largest block whose values are None, which stands for ones.
    """
    if dtype == np.float32 and ("torch" in sys.modules or num_entries >= _MANY):
        from unilaunch_graph.operators.fbgemm import product

        return product
    return _product_of(np.ones(most_ones, dtype), num_columns)


def _product_of(ones: Rows, num_columns: int) -> Callable[..., Callable[[Rows], Rows]]:
    """Return SciPy's way to multiply a block; blocks without values share the ones."""

    def product(indptr: NDArray[np.int32], indices: NDArray[np.int32], values: Rows | None) -> Callable[[Rows], Rows]:
        entries = ones[: len(indices)] if values is None else values
        matrix = sp.csr_array((entries, indices, indptr), shape=(len(indptr) - 1, num_columns))
        multiply: Callable[[Rows], Rows] = matrix.__matmul__
        return multiply

    return product


#: Threads that share the blocks; None where one thread is enough.
Pool: TypeAlias = ThreadPoolExecutor | None


def make_pool(threads: int) -> Pool:
    """Return threads for `each`; None where one is enough."""
    return ThreadPoolExecutor(threads, initializer=_without_threads_of_its_own) if threads > 1 else None


def _without_threads_of_its_own() -> None:
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # of this thread: the others keep theirs


def each(pool: Pool, blocks: Sequence[Block], multiply: Callable[[Block], None], between: Callable[[], None]) -> None:
    """Multiply the blocks, by all threads if there is a pool, and do *between* after each."""
    for _ in pool.map(multiply, blocks) if pool else map(multiply, blocks):
        between()
