"""torch, as the GCN asks for it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch_gcn.tensors import DeviceTensors, Forward, Masks, Operation, Tensors
from unilaunch_gcn.torch_dropout import DeviceMasks
from unilaunch_graph.arrays import Floats, FloatType, HostFunction
from unilaunch_graph.operators.aggregation import DenseFeatures, LinearOperator
from unilaunch_torch.linear import OnHost, apply, call
from unilaunch_torch.sparse import SparseMatrix


def product_in_bfloat16(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the product of what is rounded to bfloat16, as float32; its gradient is made alike."""
    return (rows.bfloat16() @ weight.bfloat16()).float()


class _KnownGradient(torch.autograd.Function):
    """A scalar of which the gradient by the logits is known.

    Where `torch.autograd.grad` is given a gradient, torch imports sympy, which takes each rank 0.6 s.
    """

    @staticmethod
    @override
    def forward(ctx: Any, logits: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return logits.new_zeros(())

    @staticmethod
    @override
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


class TorchTensors(Tensors):
    """torch on the host."""

    rounded: tuple[Any, torch.Tensor] | None = None

    @override
    def tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array)

    @override
    def array(self, tensor: torch.Tensor) -> Floats:
        numbers: Floats = tensor.detach().cpu().numpy()
        return numbers

    @override
    def product(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return product_in_bfloat16(rows, weight) if self.is_bfloat16 else rows @ weight

    @override
    def relu(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.relu(rows)

    @override
    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.mean(dim=1, keepdim=True)

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        if self.is_bfloat16 and isinstance(operator, DenseFeatures):
            return partial(product_in_bfloat16, self._rounded(operator.features))
        return partial(apply, OnHost(operator))

    @override
    def call(self, function: HostFunction, *inputs: torch.Tensor) -> torch.Tensor:
        return call(function, *inputs)

    def _rounded(self, features: Floats) -> torch.Tensor:
        """Return the features in bfloat16; those that no dropout changes are rounded once."""
        if self.rounded is None or self.rounded[0] is not features:
            self.rounded = features, torch.from_numpy(features).bfloat16()
        return self.rounded[1]

    @override
    def differentiate(
        self, forward: Forward, gradient_of: Operation, num_parameters: int
    ) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
        def gradients(parameters: Sequence[Any]) -> Sequence[torch.Tensor]:
            tensors = [self.tensor(parameter).detach().requires_grad_() for parameter in parameters]
            logits = forward(tensors)
            known = _KnownGradient.apply(logits, gradient_of(logits.detach()))  # type: ignore[no-untyped-call]
            return torch.autograd.grad(known, tensors)

        return gradients

    @override
    def scores(self, forward: Forward, parameters: Sequence[Any]) -> torch.Tensor:
        with torch.no_grad():
            scores: torch.Tensor = super().scores(forward, parameters)
        return scores


class TorchDeviceTensors(TorchTensors, DeviceTensors):
    """torch on a device: the weights are kept there too.

    Args:
        device: The device: "cuda:0".
        is_bfloat16: Products are rounded to bfloat16.
    """

    numeric = torch

    def __init__(self, device: str, *, is_bfloat16: bool = False) -> None:
        super().__init__(is_bfloat16=is_bfloat16)
        self.device = torch.device(device)
        # One type for the sum over ranks: HCCL has no float64.
        self.summed = np.dtype("float32" if self.device.type == "npu" else "float64")

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
    def sparse(
        self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]
    ) -> SparseMatrix:
        return SparseMatrix(indptr, indices, values, shape, self.device)

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
    def masks(self, dropout: float, seed: int, nodes: NDArray[np.int64], dtype: FloatType) -> Masks:
        return DeviceMasks(dropout, seed, nodes, dtype, self.device)
