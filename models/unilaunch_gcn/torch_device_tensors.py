"""torch on a device, as the GCN asks for it: with Triton's kernels on a GPU, or torch's operations."""

import warnings
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn import torch_epilogue
from unilaunch_gcn.tensors import DeviceTensors, Operation
from unilaunch_gcn.torch_dropout import DeviceMasks
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.arrays import Floats, FloatType
from unilaunch_graph.exchange.meter import HostWatch, Watch
from unilaunch_graph.operators.epilogue import Epilogue
from unilaunch_torch.events import EventWatch
from unilaunch_torch.linear import apply
from unilaunch_torch.sparse import CsrArrays, KernelMatrix, SparseMatrix


class TorchDeviceTensors(TorchTensors, DeviceTensors):
    """torch on a device: the weights are kept there too.

    Attributes:
        kernels: `triton_kernels`; None: torch's own operations do the same.

    Args:
        device: The device: "cuda:0".
        is_bfloat16: Rows and products are bfloat16, sums and weights float32.
        is_fused: Use Triton's kernels; None: on a GPU, if Triton is installed.
    """

    framework = "torch"
    numeric = torch

    def __init__(self, device: str, *, is_bfloat16: bool = False, is_fused: bool | None = None) -> None:
        super().__init__(is_bfloat16=is_bfloat16)
        self.device = torch.device(device)
        # One type for the sum over ranks: HCCL has no float64.
        self.summed = np.dtype("float32" if self.device.type == "npu" else "float64")
        if is_fused is None:
            is_fused = self.device.type == "cuda" and find_spec("triton") is not None
        self.kernels = _triton_kernels(self.device) if is_fused else None

    @override
    def agree(self, collectives: Collectives) -> None:
        without = torch.tensor([float(self.kernels is None)], device=self.device)
        collectives.all_reduce(without)
        if without.item():
            self.kernels = None

    @property
    def passes(self) -> torch_epilogue.Passes:
        """What applies an epilogue."""
        return self.kernels or torch_epilogue

    def kind(self, dtype: FloatType) -> torch.dtype:
        """Return the type of rows of a training whose weights have the type *dtype*."""
        kind: torch.dtype = torch.bfloat16 if self.is_bfloat16 else getattr(torch, dtype.name)
        return kind

    @override
    def tensor(self, array: Any) -> torch.Tensor:
        return array if isinstance(array, torch.Tensor) else torch.as_tensor(np.array(array), device=self.device)

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return partial(apply, operator)

    @override
    def concatenate(self, arrays: list[torch.Tensor], axis: int) -> torch.Tensor:
        return torch.cat(arrays, axis)

    @override
    def empty(self, shape: tuple[int, int], like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(shape)

    @override
    def take(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return rows.index_select(0, places)

    @override
    def pack(self, rows: torch.Tensor, places: torch.Tensor, factors: torch.Tensor | None = None) -> torch.Tensor:
        taken: torch.Tensor = super().pack(rows, places, factors)  # multiplied in the type of the factors, then rounded
        return taken.bfloat16() if self.is_bfloat16 else taken

    @override
    def sparse(
        self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]
    ) -> SparseMatrix | KernelMatrix:
        if self.kernels is None:
            return SparseMatrix(indptr, indices, values, shape, self.device)
        return KernelMatrix(CsrArrays(indptr, indices, values, shape, self.device), self.kernels.multiply)

    @override
    def buffer(self, weights: Floats) -> torch.Tensor:
        return self.tensor(weights)

    @override
    def message(self, value: torch.Tensor, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = (value.reshape(1), value.new_zeros(1), *(gradient.reshape(-1) for gradient in gradients))
        return torch.cat(parts).to(getattr(torch, self.summed.name))

    @override
    def local(self, message: torch.Tensor) -> torch.Tensor:
        return message

    @override
    def watch(self) -> Watch:
        return EventWatch() if self.device.type == "cuda" else HostWatch()

    @override
    def masks(
        self, dropout: float, seed: int, nodes: NDArray[np.int64], dtype: FloatType, num_layers: int
    ) -> DeviceMasks:
        return DeviceMasks(dropout, seed, self.tensor(nodes), dtype, num_layers)


def _triton_kernels(device: torch.device) -> ModuleType | None:
    """Return `triton_kernels`; None, with a warning, if Triton cannot compile and start one of them here."""
    try:
        from unilaunch_gcn import triton_kernels

        triton_kernels.apply(Epilogue(relu=True), *torch.zeros(2, 1, 1, device=device))
    except Exception as error:  # noqa: BLE001  (Triton's own, those of compilers that it starts, an assertion on libcuda)
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        warnings.warn(
            f"Triton compiles no kernel here, so torch's own operations train, which is slower: {reason}: install a C "
            "compiler and Python's headers (gcc, python3-dev)",
            stacklevel=3,
        )
        return None
    return triton_kernels
