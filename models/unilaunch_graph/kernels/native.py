"""The functions of kernels.c on float32 arrays. ctypes releases the interpreter's lock, so threads run side by side."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import FloatType, Rows, empty_rows
from unilaunch_graph.dropout import MaskWords
from unilaunch_graph.kernels.portable import IDENTITY, NOTHING, Epilogue, Nonlinearity

_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_MATRIX = (_POINTER, _SIZE, _SIZE)
_EPILOGUE = (_POINTER, _INT, _POINTER, ctypes.c_float)
_MASK = (_POINTER, _POINTER, ctypes.c_uint32, ctypes.c_float)
_ARGUMENTS = {
    "multiply": (*_MATRIX, *_MASK, *_MATRIX, _POINTER, _SIZE, _SIZE, _SIZE, _POINTER, *_EPILOGUE, _POINTER, _INT, _INT),
    "end_rows": (_POINTER, _SIZE, _SIZE, *_EPILOGUE),
    "aggregate": (_POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _INT),
    "aggregate_rounded": (_POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _INT),
    "round_rows": (*(_POINTER,) * 3, _SIZE, _SIZE),
    "finish": (_POINTER, _SIZE, _SIZE, *(_POINTER,) * 4, _INT, *_MASK),
    "drop_out": (*(_POINTER,) * 2, _SIZE, _SIZE, *_MASK, _INT),
    "pass_positive": (*(_POINTER,) * 3, _SIZE, ctypes.c_float),
}


class Multiply(Protocol):
    """The product of some rows of a sparse matrix."""

    def __call__(self, rows: Any, out: Rows, *, add: bool) -> None:
        """Write the product with *rows*, floats or bfloat16's words, to *out*, or add it to what stands there."""


#: float32 of fewer rows or columns is multiplied by vectors: cutting it takes longer than tiles save. (Of A, and of B.)
_ROWS_OF_TILES, _COLUMNS_OF_TILES = 128, 32
#: Fewer rows than this are not worth a thread.
_FEW = 512


class Masked(NamedTuple):
    """A matrix times a dropout mask, which is made anew while it is multiplied.

    Attributes:
        array: The matrix. (rows, columns)
        mask: The words of its rows and columns.
    """

    array: Rows
    mask: MaskWords

    @property
    def T(self) -> "Masked":  # noqa: N802  (as numpy's)
        """The transposed matrix times the transposed mask."""
        return Masked(self.array.T, replace(self.mask, rows=self.mask.columns, columns=self.mask.rows))


class NativeKernels:
    """`PortableKernels` in C, for float32.

    Args:
        library: What `library.load_library` returns.
        threads: Threads that share the rows of a result.
        is_rounded: Operands of dense products are rounded to bfloat16; sums are float32.
        by_tiles: Dense products use AMX where there is AMX.
    """

    dtype: FloatType = np.dtype(np.float32)

    def __init__(self, library: ctypes.CDLL, threads: int, *, is_rounded: bool = False, by_tiles: bool = True) -> None:
        self.library, self.threads, self.is_rounded = library, threads, is_rounded
        self.by_tiles = by_tiles and bool(library.has_tiles())
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None
        library.most_depth.restype = _SIZE
        library.packed_size.argtypes, library.packed_size.restype = (_SIZE, _INT), _SIZE
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes, getattr(library, name).restype = arguments, None

    def operand(self, array: Rows) -> Rows:
        """Return what `product` takes for an array: itself."""
        return array

    def dropped(self, array: Rows, words: MaskWords) -> Masked:
        """Return what `product` takes for an array times a dropout mask: there is no copy."""
        return Masked(array, words)

    def product(self, left: Rows | Masked, right: Rows, epilogue: Epilogue = NOTHING) -> Rows:
        """Return left @ right, ended; both may be views, with any steps. (rows, depth), (depth, width) -> (rows, width)

        The epilogue is done while the rows are in the cache; where it rounds, bfloat16's words are returned.
        """
        left, mask = left if isinstance(left, Masked) else (left, None)
        (rows, depth), width = left.shape, right.shape[1]
        is_large = rows >= _ROWS_OF_TILES and width >= _COLUMNS_OF_TILES
        by_tiles = self.by_tiles and (self.is_rounded or is_large)
        words = empty_rows((rows, width), np.uint16) if epilogue.rounds and depth else None
        out = (
            None if words is not None and depth <= self.library.most_depth() else empty_rows((rows, width), np.float32)
        )
        if out is not None and not depth:
            out[...] = 0
        steps = [step // 4 for step in (*left.strides, *right.strides)]

        def multiply(begin: int, end: int) -> None:
            packed = empty_rows((self.library.packed_size(width, by_tiles),), np.float32)
            self.library.multiply(
                _from_row(left, begin), *steps[:2], *_of_mask(mask, begin), _address(right), *steps[2:],
                _from_row(out, begin), end - begin, depth, width, _address(packed), *_of_rows(epilogue, begin),
                _from_row(words, begin), by_tiles, self.is_rounded,
            )  # fmt: skip

        self._share(rows, multiply, max(16, _FEW * 128 // max(1, depth)))
        return cast("Rows", out if words is None else words)

    def drop_out(self, rows: Rows, words: MaskWords) -> Rows:
        """Return the rows times a dropout mask. (rows, width)"""
        return self._masked(rows, words, relu=False)

    def activate(self, rows: Rows, words: MaskWords | None) -> Rows:
        """Return max(0, rows), times a dropout mask if there is one. (rows, width)"""
        return self.pass_positive(rows, rows, 1.0) if words is None else self._masked(rows, words, relu=True)

    def _masked(self, rows: Rows, words: MaskWords, *, relu: bool) -> Rows:
        rows, out = np.ascontiguousarray(rows), empty_rows(rows.shape, np.float32)

        def mask(begin: int, end: int) -> None:
            self.library.drop_out(
                _address(rows) + begin * rows.strides[0], _address(out) + begin * out.strides[0], end - begin,
                rows.shape[1], *_of_mask(words, begin), relu,
            )  # fmt: skip

        self._share(len(rows), mask)
        return out

    def pass_positive(self, rows: Rows, gradient: Rows, scale: float) -> Rows:
        """Return 0 where *rows* is 0 or less, else scale * gradient. (rows, width)"""
        rows, gradient = np.ascontiguousarray(rows), np.ascontiguousarray(gradient)
        out: Rows = empty_rows(rows.shape, np.float32)

        def choose(begin: int, end: int) -> None:
            offset = begin * rows.strides[0]
            addresses = (_address(array) + offset for array in (rows, gradient, out))
            self.library.pass_positive(*addresses, (end - begin) * rows.shape[1], scale)

        self._share(len(rows), choose)
        return out

    def end(self, rows: Rows, epilogue: Epilogue) -> None:
        """Do the epilogue of rows in their place. (rows, width)"""

        def end_rows(begin: int, end: int) -> None:
            address = _address(rows) + begin * rows.strides[0]
            self.library.end_rows(address, end - begin, rows.shape[1], *_of_rows(epilogue, begin))

        self._share(len(rows), end_rows)

    def finish(self, out: Rows, own: Any, loops: Rows | None, left: Rows | None, then: Nonlinearity = IDENTITY) -> None:
        """Make left (out + loops own) of *out*, then what follows; see `PortableKernels.finish`."""
        own, words = (None, own) if own is not None and own.dtype == np.uint16 else (own, None)
        arrays = [None if array is None else np.ascontiguousarray(array) for array in (own, words, loops, left)]
        places = (None if array is None else _address(array) for array in arrays)
        self.library.finish(_address(out), *out.shape, *places, then.relu, *_of_mask(then.mask, 0))

    def scaled(self, rows: Rows, factors: Rows) -> Rows:
        """Return the rows, each times its factor. (rows, width), (rows, 1)"""
        out: Rows = empty_rows(rows.shape, np.float32)

        def scale(begin: int, end: int) -> None:
            np.multiply(rows[begin:end], factors[begin:end], out=out[begin:end])

        self._share(len(rows), scale)
        return out

    def rounded(self, rows: Rows, factors: Rows | None = None) -> NDArray[np.uint16]:
        """Return finite rows, each times its factor, as bfloat16's words."""
        rows, out = np.ascontiguousarray(rows), empty_rows(rows.shape, np.uint16)

        def scale(begin: int, end: int) -> None:
            place = None if factors is None else _address(factors) + begin * factors.strides[0]
            places = (_address(array) + begin * array.strides[0] for array in (rows, out))
            self.library.round_rows(next(places), place, next(places), end - begin, rows.shape[1])

        self._share(len(rows), scale)
        words: NDArray[np.uint16] = out
        return words

    def aggregate(
        self, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: Rows | None
    ) -> Callable[[int, int], Multiply]:
        """Return a function that returns, for a stretch of a CSR matrix's rows, their product with rows.

        The product writes to an array, or adds to it.

        Args:
            indptr: Where each row's entries begin in *indices*. (rows + 1,)
            indices: Column of each entry.
            values: Of each entry; None: each is 1.
        """
        indices = np.ascontiguousarray(indices, np.int32)
        return lambda begin, end: _SparseRows(self.library, (indptr[begin : end + 1], indices, values))

    def _share(self, rows: int, work: Callable[[int, int], None], least: int = _FEW) -> None:
        """Do *work* for stretches of rows, each in a thread, if each has *least* rows or more."""
        if self.pool is None or rows < least * self.threads:
            work(0, rows)
            return
        ends = [rows * thread // self.threads for thread in range(self.threads + 1)]
        for _ in self.pool.map(work, ends[:-1], ends[1:]):
            pass


class _SparseRows:
    """The product of some rows of a sparse matrix.

    Args:
        library: The kernels.
        arrays: indptr of these rows, then indices and values of the whole matrix; C has only their addresses, so they
            are held here.
    """

    def __init__(self, library: ctypes.CDLL, arrays: tuple[NDArray[np.int64], NDArray[np.int32], Rows | None]) -> None:
        self.library, self.arrays = library, arrays
        self.places = [None if array is None else _address(array) for array in arrays]

    def __call__(self, rows: Any, out: Rows, *, add: bool) -> None:
        """Write the product with *rows*, float32 or bfloat16's words, to *out*, or add it to what stands there."""
        count = len(self.arrays[0]) - 1
        aggregate = self.library.aggregate_rounded if rows.dtype == np.uint16 else self.library.aggregate
        aggregate(*self.places, count, _address(rows), rows.shape[1], _address(out), add)


def _of_rows(epilogue: Epilogue, begin: int) -> tuple[int | None, bool, int | None, float]:
    """Return the arguments of C's end_rows for the rows from *begin* on; its arrays are contiguous."""
    return _from_row(epilogue.factors, begin), epilogue.relu, _from_row(epilogue.where, begin), epilogue.scale


def _of_mask(words: MaskWords | None, begin: int) -> tuple[int | None, int | None, int, float]:
    """Return C's arguments for a mask of the rows from *begin* on."""
    if words is None:
        return None, None, 0, 1.0
    return _address(words.rows) + 4 * begin, _address(words.columns), words.least, words.scale


def _from_row(array: NDArray[Any] | None, row: int) -> int | None:
    """Return where an array's rows begin, from *row* on."""
    return None if array is None else _address(array) + row * array.strides[0]


def _address(array: NDArray[Any]) -> int:
    address: int = array.ctypes.data
    return address
