"""The functions of torch that unilaunch's layers use."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.weak import WeakIdKeyDictionary

from unilaunch_graph.arrays import FloatType, HostFunction
from unilaunch_graph.operators.row_blocks import make_pool
from unilaunch_graph.partition.part import Part
from unilaunch_graph.torch.part import GraphPart, writes
from unilaunch_torch.linear import OnHost, apply, call

_known: Any = WeakIdKeyDictionary()  # tensor -> its `writes`, and what was made of it then


class _Torch:
    def check(self, layer: str, rows: torch.Tensor) -> None:
        """Refuse rows of a type, or on a device, that the layer cannot use.

        Raises:
            TypeError: They are neither float32 nor float64, or not in the host's memory, or autocast is on.
        """
        if rows.device.type != "cpu" or rows.dtype not in {torch.float32, torch.float64}:
            raise TypeError(
                f"{layer}: {rows.dtype} on {rows.device}: it computes float32 and float64 in the host's memory; "
                f"elsewhere use torch_geometric.nn.{layer.rpartition('.')[2]} with ug.torch.distribute"
            )
        if torch.is_autocast_enabled("cpu"):
            raise TypeError(
                f'{layer}: torch.autocast("cpu") is on: it computes float32 and float64: call it in '
                f'torch.autocast("cpu", enabled=False), or use torch_geometric.nn.{layer.rpartition(".")[2]} with '
                "ug.torch.distribute"
            )

    def call(self, function: HostFunction, *inputs: torch.Tensor) -> torch.Tensor:
        return call(function, *inputs)

    def apply(self, operator: Any, rows: torch.Tensor) -> torch.Tensor:
        return apply(OnHost(operator), rows)

    def arrays(self, part: GraphPart) -> Part:
        return part.arrays

    def together(self, operator: Any, rows: torch.Tensor, part: GraphPart) -> torch.Tensor:  # noqa: ARG002
        return apply(OnHost(operator), rows)

    def product(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rows @ weight

    def biased(self, rows: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return rows + bias

    def relu(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.relu()

    def identity(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.eye(rows.shape[1], dtype=rows.dtype)

    def is_plain(self, linear: torch.nn.Module) -> bool:
        return type(linear) is torch.nn.Linear and not (
            linear._forward_pre_hooks or linear._forward_hooks  # noqa: SLF001  (torch has no other way to ask)
            or linear._backward_pre_hooks or linear._backward_hooks  # noqa: SLF001
        )  # fmt: skip

    def dtype(self, rows: torch.Tensor) -> FloatType:
        return np.dtype(np.float64 if rows.dtype == torch.float64 else np.float32)

    def edges(self, part: GraphPart) -> tuple[NDArray[Any], dict[Any, Any]]:
        return part.edge_index.numpy(), made_of(part.edge_index)

    def pool(self) -> ThreadPoolExecutor | None:
        """Return as many threads as torch has when this is first called; None if it has one."""
        return _pool()


@cache
def _pool() -> ThreadPoolExecutor | None:
    return make_pool(torch.get_num_threads())


def made_of(tensor: torch.Tensor, every: Any = _known) -> dict[Any, Any]:
    """Return the cache for what is made of edges or weights; an empty one if they have been written to since.

    Args:
        tensor: Edges or weights.
        every: The caches of all tensors, a WeakIdKeyDictionary.
    """
    if tensor.is_inference():  # torch does not count how often it is written to
        return {}
    known: tuple[Any, dict[Any, Any]] | None = every.get(tensor)
    if known is None or known[0] != writes(tensor):
        known = every[tensor] = writes(tensor), {}
    return known[1]


TORCH = _Torch()
