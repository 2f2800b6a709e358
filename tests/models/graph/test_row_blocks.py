"""Both sparse products of the host: equal to each other, on one thread and on several."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from unilaunch_graph.arrays import FloatType, Rows
from unilaunch_graph.operators.row_blocks import Block, RowBlocks, each, make_pool

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def _matrix(rows: int, columns: int) -> sp.csr_array:
    """Return a matrix with empty rows, at the ends too."""
    draw = np.random.default_rng(rows)
    entries = draw.integers(0, 9, rows) * (draw.random(rows) < 0.7)
    entries[[0, -1]] = 0
    indptr = np.concatenate(([0], np.cumsum(entries)))
    indices = draw.integers(0, columns, indptr[-1]).astype(np.int32)
    return sp.csr_array((draw.random(len(indices), np.float32), indices, indptr), shape=(rows, columns))


def _product(matrix: sp.csr_array, weights: NDArray[np.float32], rows: Rows, threads: int) -> Rows:
    blocks = RowBlocks(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), weights, matrix.shape[1], rows.dtype
    )
    out = np.full((matrix.shape[0], rows.shape[1]), np.nan, rows.dtype)

    def multiply(block: Block) -> None:
        out[block.span] = block.multiply(rows)

    each(make_pool(threads), blocks.blocks, multiply, lambda: None)
    return out


@pytest.mark.parametrize("dtype", [F32, F64], ids=["FBGEMM", "SciPy"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (70, 3), (5000, 16), (4097, 128)])
def test_blocks_give_the_product(dtype: FloatType, threads: int, rows: int, width: int) -> None:
    """With values and with ones, at any width; threads of ours leave torch's own alone."""
    matrix = _matrix(rows, 300)
    dense = np.random.default_rng(1).standard_normal((300, width)).astype(dtype)
    before = torch.get_num_threads()
    near = 1e-5 if dtype == F32 else 1e-12
    np.testing.assert_allclose(_product(matrix, matrix.data, dense, threads), matrix @ dense, rtol=0, atol=near)
    matrix.data[:] = 1
    ones = np.zeros(0, np.float32)
    np.testing.assert_allclose(_product(matrix, ones, dense, threads), matrix @ dense, rtol=0, atol=near)
    assert torch.get_num_threads() == before


def test_arrays_of_a_file_are_not_warned_of() -> None:
    """A part's are mapped, and not writable: torch would say so on every rank."""
    program = """
import numpy as np, torch
from unilaunch_graph.operators.row_blocks import RowBlocks
indptr, indices = np.array([0, 2]), np.array([0, 1], np.int32)
indices.flags.writeable = False
blocks = RowBlocks(indptr, indices, np.zeros(0, np.float32), 2, np.dtype("float32")).blocks
print(blocks[0].multiply(np.eye(2, dtype="f")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[[1. 1.]]", "")


def test_torch_is_imported_for_large_matrices_only() -> None:
    """A rank of MindSpore with a small part starts without it."""
    program = """
import sys
import numpy as np
from unilaunch_graph.operators import row_blocks
def imported(many):
    row_blocks._MANY = many
    row_blocks.RowBlocks(np.array([0, 2]), np.array([0, 1], np.int32), np.zeros(0, np.float32), 2, np.dtype("float32"))
    return "torch" in sys.modules
print(imported(3), imported(2))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "True"]
