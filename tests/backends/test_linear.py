"""Operators in each framework's autograd, and sparse products on tensors: the same contract for both frameworks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import unilaunch_mindspore.linear as mindspore_linear
import unilaunch_mindspore.sparse as mindspore_sparse
import unilaunch_torch.linear as torch_linear
import unilaunch_torch.sparse as torch_sparse

Array = NDArray[Any]


class _Matrix:
    """A matrix on host arrays, as an operator."""

    def __init__(self, matrix: Array) -> None:
        self.matrix = matrix

    def matmat(self, rows: Array) -> Array:
        return np.asarray(self.matrix @ rows)

    def rmatmat(self, rows: Array) -> Array:
        return np.asarray(self.matrix.T @ rows)


def _torch_gradient(matrix: Array, rows: Array, upstream: Array) -> tuple[Array, Array]:
    tensor = torch.from_numpy(rows).requires_grad_()
    product = torch_linear.apply(torch_linear.OnHost(_Matrix(matrix)), tensor)
    (gradient,) = torch.autograd.grad(product, tensor, torch.from_numpy(upstream))
    return product.detach().numpy(), gradient.numpy()


def _mindspore_gradient(matrix: Array, rows: Array, upstream: Array) -> tuple[Array, Array]:
    apply = mindspore_linear.Apply(mindspore_linear.OnHost(_Matrix(matrix)))
    weight = ms.Tensor(upstream)
    product = apply(ms.Tensor(rows)).asnumpy()
    return product, ms.grad(lambda tensor: (apply(tensor) * weight).sum())(ms.Tensor(rows)).asnumpy()


@pytest.mark.parametrize("gradient", [_torch_gradient, _mindspore_gradient], ids=["torch", "mindspore"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradient_is_the_transposed_operator(
    gradient: Callable[[Array, Array, Array], tuple[Array, Array]], dtype: type
) -> None:
    """Forward A x, backward A^T g, in the type of the rows."""
    draw = np.random.default_rng(0)
    arrays: list[Array] = [draw.standard_normal(shape).astype(dtype) for shape in ((7, 5), (5, 3), (7, 3))]
    matrix, rows, upstream = arrays
    product, back = gradient(matrix, rows, upstream)
    limit = 1e-5 if dtype is np.float32 else 1e-13
    np.testing.assert_allclose(product, matrix @ rows, rtol=0, atol=limit)
    np.testing.assert_allclose(back, matrix.T @ upstream, rtol=0, atol=limit)
    assert product.dtype == back.dtype == dtype


@dataclass(frozen=True)
class _Sparse:
    """One way to multiply: a CSR matrix, rows, and values in place of the matrix's own."""

    multiply: Callable[[sp.csr_array, Array, Array | None], Array]


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


WAYS = {
    "torch CSR": _Sparse(lambda m, r, v: _by_torch(m, r, v, has_csr=True)),
    "torch gather": _Sparse(lambda m, r, v: _by_torch(m, r, v, has_csr=False)),
    "mindspore": _Sparse(_by_mindspore),
}


@pytest.mark.parametrize("way", WAYS)
@given(shape=st.tuples(st.integers(1, 8), st.integers(1, 8)), width=st.integers(1, 3), density=st.floats(0, 1))
def test_sparse_product_is_scipys(way: str, shape: tuple[int, int], width: int, density: float) -> None:
    """For any shape and any emptiness, with the matrix's own values and with others."""
    draw = np.random.default_rng(1)
    matrix = sp.csr_array(draw.standard_normal(shape) * (draw.random(shape) < density))
    rows, values = draw.standard_normal((shape[1], width)), draw.standard_normal(matrix.nnz)
    other = sp.csr_array((values, matrix.indices, matrix.indptr), shape=shape)
    multiply = WAYS[way].multiply
    np.testing.assert_allclose(multiply(matrix, rows, None), matrix @ rows, rtol=0, atol=1e-12)
    np.testing.assert_allclose(multiply(matrix, rows, values), other @ rows, rtol=0, atol=1e-12)


def test_the_second_derivative_is_right() -> None:
    """The gradient of an operator is a linear operator itself; torch's numeric derivative is the reference."""
    matrix = np.random.default_rng(0).standard_normal((4, 3))
    rows = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: torch_linear.apply(torch_linear.OnHost(_Matrix(matrix)), x * x), rows)
