"""A sparse matrix on the host, in blocks of rows that threads multiply one by one."""

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.arrays import FloatType, Rows
from unilaunch_graph.kernels.choice import Kernels, torch_is_worth_its_import
from unilaunch_graph.kernels.native import Multiply, NativeKernels

#: Rows that are multiplied at a time: the product is written while it is in the cache, and the exchange moves on.
_PIECE = 2048


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a matrix.

    Attributes:
        span: Which rows.
        num_entries: Entries in them.
        multiply: Writes their product with rows (columns of the matrix, width) to an array (rows of the block, width),
            or adds it to what stands there.
    """

    span: slice
    num_entries: int
    multiply: Multiply


class RowBlocks:
    """W, or a part of it, in blocks of rows.

    Args:
        indptr: Where each row begins. (rows + 1,)
        indices: Column of each entry. int32
        weights: Of each entry; of no length if each is 1.
        num_columns: Columns of W.
        kernels: The rank's kernels: those in C multiply; beside the portable ones FBGEMM or SciPy does.
    """

    def __init__(
        self, indptr: NDArray[Any], indices: NDArray[np.int32], weights: Rows, num_columns: int,
        kernels: Kernels,
    ) -> None:  # fmt: skip
        num_rows = len(indptr) - 1
        ends = [*range(0, num_rows, _PIECE), num_rows]
        values = weights.astype(kernels.dtype, copy=False) if len(weights) else None
        if isinstance(kernels, NativeKernels):
            multiply_rows = kernels.aggregate(indptr.astype(np.int64, copy=False), indices, values)
        else:
            most = 0 if values is not None else max(np.diff(indptr[ends]), default=0)
            product = choose_product(kernels.dtype, len(indices), num_columns, most)
            multiply_rows = _by_library(indptr, indices, values, product)
        self.blocks = [
            Block(slice(begin, end), int(indptr[end] - indptr[begin]), multiply_rows(begin, end))
            for begin, end in pairwise(ends)
        ]

    @property
    def filled(self) -> list[Block]:
        """The blocks that have an entry."""
        return [block for block in self.blocks if block.num_entries]


def _by_library(
    indptr: NDArray[Any],
    indices: NDArray[np.int32],
    values: Rows | None,
    product: Callable[..., Callable[[Rows], Rows]],
) -> Callable[[int, int], Multiply]:
    """Return the same function as `NativeKernels.aggregate`, by a library's product."""

    def of_rows(begin: int, end: int) -> Multiply:
        first, last = int(indptr[begin]), int(indptr[end])
        local = (indptr[begin : end + 1] - first).astype(np.int32)
        multiply = product(local, indices[first:last], None if values is None else values[first:last])

        def write(rows: Rows, out: Rows, *, add: bool) -> None:
            if add:
                out += multiply(rows)
            else:
                out[...] = multiply(rows)

        return write

    return of_rows


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
    if dtype == np.float32 and torch_is_worth_its_import(num_entries):
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


#: Held while torch's number of threads is another one.
_LOCK = threading.Lock()
#: Threads that share the blocks; None where one thread is enough.
Pool: TypeAlias = ThreadPoolExecutor | None


def make_pool(threads: int) -> Pool:
    """Return threads for `each`, all of which have begun; None where one is enough."""
    if threads <= 1:
        return None
    pool = ThreadPoolExecutor(threads, initializer=_without_threads_of_its_own)
    all_have_begun = threading.Barrier(threads)
    list(pool.map(lambda _: all_have_begun.wait(), range(threads)))  # afterwards none sets torch's number any more
    return pool


def _without_threads_of_its_own() -> None:
    """Let torch use one thread in this thread; its number for threads that begin later stays what it was.

    `set_num_threads` sets both. So a thread that ends at once sets the number again.
    """
    if torch := sys.modules.get("torch"):
        with _LOCK:
            number = torch.get_num_threads()
            torch.set_num_threads(1)
            again = threading.Thread(target=torch.set_num_threads, args=(number,))
            again.start()
            again.join()


def _nothing() -> None:
    pass


def each(
    pool: Pool, blocks: Sequence[Block], multiply: Callable[[Block], None], between: Callable[[], None] = _nothing
) -> None:  # fmt: skip
    """Multiply the blocks, by all threads if there is a pool, and do *between* after each."""
    for _ in pool.map(multiply, blocks) if pool else map(multiply, blocks):
        between()


def multiply_blocks(
    matrix: RowBlocks, rows: Rows, out: Rows, pool: Pool, between: Callable[[], None] = _nothing
) -> None:  # fmt: skip
    """Write the product of a matrix and rows to *out*; the other arguments are those of `each`."""

    def multiply(block: Block) -> None:
        block.multiply(rows, out[block.span], add=False)

    each(pool, matrix.blocks, multiply, between)


def transposed(
    indptr: NDArray[Any], indices: NDArray[np.int32], weights: NDArray[np.float32], num_columns: int,
    kernels: Kernels,
) -> RowBlocks:  # fmt: skip
    """Return the transpose of a matrix; the arguments are those of `RowBlocks`."""
    values = weights if len(weights) else np.ones(len(indices), np.int8)
    matrix = sp.csr_array((values, indices, indptr), shape=(len(indptr) - 1, num_columns)).T.tocsr()
    kept = matrix.data if len(weights) else weights
    return RowBlocks(matrix.indptr, matrix.indices.astype(np.int32, copy=False), kept, len(indptr) - 1, kernels)
