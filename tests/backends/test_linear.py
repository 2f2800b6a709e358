"""Sparse products on the tensors of both frameworks are SciPy's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import unilaunch_mindspore.sparse as mindspore_sparse
import unilaunch_torch.sparse as torch_sparse

Array = NDArray[Any]


def _by_torch(matrix: sp.csr_array, rows: Array, values: Array | None, *, has_csr: bool) -> Array:
    device = torch.device("cpu")
    kept = torch_sparse.SparseMatrix(matrix.indptr, matrix.indices, matrix.data, matrix.shape, device)
    kept.csr = kept.csr if has_csr else None
    product = kept.matmat(torch.from_numpy(rows), None if values is None else torch.from_numpy(values))
    return np.asarray(product.numpy())


def _by_mindspore(matrix: sp.csr_array, rows: Array, values: Array | None) -> Array:
    kept = mindspore_sparse.SparseMatrix(matrix.indptr, matrix.indices, matrix.data, matrix.shape)
    other = None if values is None else ms.Tensor(values)
    return np.asarray(kept.matmat(ms.Tensor(rows), other).asnumpy())


WAYS: dict[str, Callable[[sp.csr_array, Array, Array | None], Array]] = {
    "torch CSR": partial(_by_torch, has_csr=True),
    "torch gather": partial(_by_torch, has_csr=False),
    "mindspore": _by_mindspore,
}


@pytest.mark.parametrize("way", WAYS)
@given(shape=st.tuples(st.integers(1, 8), st.integers(1, 8)), width=st.integers(1, 3), density=st.floats(0, 1))
def test_sparse_product_is_scipys(way: str, shape: tuple[int, int], width: int, density: float) -> None:
    """For any shape and any emptiness, with the matrix's own values and with others."""
    draw = np.random.default_rng(1)
    matrix = sp.csr_array(draw.standard_normal(shape) * (draw.random(shape) < density))
    rows, values = draw.standard_normal((shape[1], width)), draw.standard_normal(matrix.nnz)
    other = sp.csr_array((values, matrix.indices, matrix.indptr), shape=shape)
    multiply = WAYS[way]
    np.testing.assert_allclose(multiply(matrix, rows, None), matrix @ rows, rtol=0, atol=1e-12)
    np.testing.assert_allclose(multiply(matrix, rows, values), other @ rows, rtol=0, atol=1e-12)
