"""Sparse times dense on a device: cuSPARSE's CSR on cuda, gather and add where torch has no sparse product (npu)."""

import warnings
from typing import Any

import torch
from numpy.typing import NDArray

#: From here on a place does not fit into an int32.
_MANY = 2**31


class SparseMatrix:
    """A constant sparse matrix on a device.

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
        kind = "int32" if max(*shape, len(indices)) < _MANY else "int64"  # half the bytes of an entry's place
        self.indptr = torch.as_tensor(indptr.astype(kind), device=device)
        self.indices = torch.as_tensor(indices.astype(kind), device=device)
        self.values = torch.as_tensor(values, device=device)
        with warnings.catch_warnings():  # torch says once that its CSR tensors are in beta
            warnings.simplefilter("ignore", UserWarning)
            self.csr = self._csr(self.values) if device.type in {"cpu", "cuda"} else None

    def matmat(self, rows: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product with *rows*.

        Args:
            rows: (columns, width)
            values: In place of the matrix's own. (entries,)
        """
        if self.csr is not None:
            return (self.csr if values is None else self._csr(values)) @ rows
        values = self.values if values is None else values
        product = rows.new_zeros(self.shape[0], rows.shape[1])
        return product.index_add_(0, self.row_of_entry(), rows.index_select(0, self.indices) * values[:, None])

    def _csr(self, values: torch.Tensor) -> torch.Tensor:
        return torch.sparse_csr_tensor(self.indptr, self.indices, values, self.shape, check_invariants=False)

    def row_of_entry(self) -> torch.Tensor:
        """Return the row of each entry. (entries,) int64."""
        counts = self.indptr.diff()
        return torch.repeat_interleave(torch.arange(self.shape[0], device=counts.device), counts)
