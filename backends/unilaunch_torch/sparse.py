"""Sparse times dense on a device: by a kernel, by cuSPARSE's CSR on cuda, by gather and add on npu."""

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray

#: The first position that does not fit into an int32.
_MANY = 2**31


class CsrArrays:
    """The arrays of a constant sparse matrix on a device.

    Attributes:
        indptr: Where each row begins. (rows + 1,) int32; int64 if there are many entries
        indices: Column of each entry. (entries,) of the same type
        values: (entries,)
        shape: Rows and columns.

    Args:
        indptr: Where each row begins. (rows + 1,)
        indices: Column of each entry. (entries,)
        values: (entries,)
        shape: Rows and columns.
        device: Where it is kept.
    """

    def __init__(
        self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int],
        device: torch.device,
    ) -> None:  # fmt: skip
        self.shape = shape
        kind = "int32" if max(*shape, len(indices)) < _MANY else "int64"  # half the bytes for an entry's position
        self.indptr = torch.as_tensor(indptr.astype(kind), device=device)
        self.indices = torch.as_tensor(indices.astype(kind), device=device)
        self.values = torch.as_tensor(values, device=device)


class SparseMatrix(CsrArrays):
    """A constant sparse matrix, multiplied by torch's own operations."""

    def __init__(
        self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int],
        device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(indptr, indices, values, shape, device)
        with warnings.catch_warnings():  # torch warns once that its CSR tensors are in beta
            warnings.simplefilter("ignore", UserWarning)
            self.csr = self._csr(self.values) if device.type in {"cpu", "cuda"} else None

    def matmat(self, rows: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product with *rows*, in the type of the values.

        Args:
            rows: (columns, width)
            values: Values to use instead of the matrix's. (entries,)
        """
        rows = rows.to(self.values.dtype)
        if self.csr is not None:
            return (self.csr if values is None else self._csr(values)) @ rows
        values = self.values if values is None else values
        product = rows.new_zeros(self.shape[0], rows.shape[1])
        return product.index_add_(0, self.row_of_entry, rows.index_select(0, self.indices) * values[:, None])

    def _csr(self, values: torch.Tensor) -> torch.Tensor:
        return torch.sparse_csr_tensor(self.indptr, self.indices, values, self.shape, check_invariants=False)

    @cached_property
    def row_of_entry(self) -> torch.Tensor:
        """The row of each entry; the host knows its length, or it would wait for the device. (entries,) int64."""
        counts = self.indptr.diff()
        rows = torch.arange(self.shape[0], device=counts.device)
        return torch.repeat_interleave(rows, counts, output_size=len(self.indices))


class KernelMatrix:
    """A constant sparse matrix, multiplied by a kernel.

    Attributes:
        indptr: As in `CsrArrays`.
        indices: As in `CsrArrays`.
        values: None if each is 1. (entries,)
        shape: Rows and columns.

    Args:
        arrays: The matrix.
        multiply: The kernel: called with the matrix, rows and where to write their product, which it returns.
    """

    def __init__(self, arrays: CsrArrays, multiply: Callable[..., torch.Tensor]) -> None:
        self.indptr, self.indices, self.shape, self.multiply = arrays.indptr, arrays.indices, arrays.shape, multiply
        self.values = None if bool((arrays.values == 1).all()) else arrays.values
        self.kind = arrays.values.dtype

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product with *rows*, in the type of the values. (columns, width) -> (rows, width)"""
        return self.multiply(self, rows.contiguous(), rows.new_empty(self.shape[0], rows.shape[1], dtype=self.kind))
