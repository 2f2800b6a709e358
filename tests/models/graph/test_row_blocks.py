"""The sparse products of the host: equal to each other, on one thread and on several."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from unilaunch_graph.arrays import Rows
from unilaunch_graph.kernels.choice import Kernels
from unilaunch_graph.kernels.library import load_library
from unilaunch_graph.kernels.native import NativeKernels
from unilaunch_graph.kernels.portable import PortableKernels
from unilaunch_graph.operators.row_blocks import Block, RowBlocks, each, make_pool

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def _kernels(name: str, threads: int) -> Kernels:
    if name == "C":
        library = load_library()
        assert library, "no C compiler"
        return NativeKernels(library, threads)
    return PortableKernels(F32 if name == "FBGEMM" else F64)


def _matrix(rows: int, columns: int) -> sp.csr_array:
    """Return a matrix with empty rows, at the ends too."""
    draw = np.random.default_rng(rows)
    entries = draw.integers(0, 9, rows) * (draw.random(rows) < 0.7)
    entries[[0, -1]] = 0
    indptr = np.concatenate(([0], np.cumsum(entries)))
    indices = draw.integers(0, columns, indptr[-1]).astype(np.int32)
    return sp.csr_array((draw.random(len(indices), np.float32), indices, indptr), shape=(rows, columns))


def _product(matrix: sp.csr_array, weights: NDArray[np.float32], rows: Rows, kernels: Kernels, threads: int) -> Rows:
    """Return the product, made of its double and itself, taken away again."""
    blocks = RowBlocks(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), weights, matrix.shape[1], kernels
    )
    out = np.full((matrix.shape[0], rows.shape[1]), np.nan, rows.dtype)

    def multiply(block: Block) -> None:
        block.multiply(2 * rows, out[block.span], add=False)
        block.multiply(-rows, out[block.span], add=True)

    each(make_pool(threads), blocks.blocks, multiply, lambda: None)
    return out


@pytest.mark.system
@pytest.mark.parametrize("name", ["C", "FBGEMM", "SciPy"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (300, 7), (4097, 128), (90, 301)])
def test_blocks_give_the_product(name: str, threads: int, rows: int, width: int) -> None:
    """With values and with ones, at any width; threads of ours leave torch's own alone."""
    matrix = _matrix(rows, 300)
    kernels = _kernels(name, threads)
    dtype = kernels.dtype
    dense = np.random.default_rng(1).standard_normal((300, width)).astype(dtype)
    before = torch.get_num_threads()
    near = 1e-5 if dtype == F32 else 1e-12
    np.testing.assert_allclose(
        _product(matrix, matrix.data, dense, kernels, threads), matrix @ dense, rtol=0, atol=near
    )
    matrix.data[:] = 1
    ones = np.zeros(0, np.float32)
    np.testing.assert_allclose(_product(matrix, ones, dense, kernels, threads), matrix @ dense, rtol=0, atol=near)
    assert torch.get_num_threads() == before


@pytest.mark.system
@pytest.mark.parametrize("name", ["C", "FBGEMM", "SciPy"])
def test_a_rank_may_have_no_column(name: str) -> None:
    """Where ranks divide fewer columns than they are; FBGEMM refuses an array of this form."""
    matrix, kernels = _matrix(9, 300), _kernels(name, 1)
    rows = np.empty(0, kernels.dtype).reshape(300, 0)
    blocks = RowBlocks(matrix.indptr.astype(np.int64), matrix.indices, matrix.data, 300, kernels).blocks
    blocks[0].multiply(rows, np.empty((9, 0), kernels.dtype), add=False)
