"""GATConv and SAGEConv: PyG's parameters and results, without a message in memory."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.weak import WeakIdKeyDictionary
from typing_extensions import override

from unilaunch_graph.arrays import FloatType, HostFunction
from unilaunch_graph.network.layers import GraphAttention, GraphSage, Operations
from unilaunch_graph.operators.row_blocks import make_pool
from unilaunch_graph.partition.part import Part
from unilaunch_graph.torch.part import GraphPart, version_of
from unilaunch_torch.linear import OnHost, apply, call

_known: Any = WeakIdKeyDictionary()  # tensor -> its `version_of`, and what was made of it then


class _TorchOperations:
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
    if known is None or known[0] != version_of(tensor):
        known = every[tensor] = version_of(tensor), {}
    return known[1]


OPERATIONS = _TorchOperations()


class GATConv(GraphAttention, torch.nn.Module):
    """`torch_geometric.nn.GATConv` on a part: `help` shows the arguments at `__init__`, as `GraphAttention` has them.

    A `state_dict` of either loads into the other, and the same torch seed gives the same initial weights.
    """

    operations: ClassVar[Operations] = OPERATIONS
    name: ClassVar[str] = "ug.torch.GATConv"

    @override
    def linear(self, in_channels: int, out_channels: int, dtype: Any) -> torch.nn.Linear:
        return torch.nn.Linear(in_channels, out_channels, bias=False, dtype=dtype)

    @override
    def vector(self, shape: tuple[int, ...], dtype: Any) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(shape, dtype=dtype))

    @override
    def draw_seed(self) -> int:
        return int(torch.randint(2**62, ()))

    @override
    def reset_parameters(self) -> None:
        """Draw new weights, as PyG does (Glorot and Bengio, AISTATS 2010, equation 16)."""
        linear = [layer.weight for layer in (self.lin, self.lin_edge, self.res) if layer is not None]
        vectors = [vector for vector in (self.att_src, self.att_dst, self.att_edge) if vector is not None]
        for weight in (*linear, *vectors):
            bound = (6.0 / (weight.shape[-2] + weight.shape[-1])) ** 0.5
            torch.nn.init.uniform_(weight, -bound, bound)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    @override
    def forward(
        self, x: torch.Tensor, part: GraphPart, edge_attr: torch.Tensor | None = None, *, seed: int | None = None
    ) -> torch.Tensor:
        """Return the rows of the owned nodes; all ranks must call it. (num_owned, heads * out_channels)

        Args:
            x: Rows of the owned nodes, float32 or float64 in the host's memory. (num_owned, in_channels)
            part: This rank's part.
            edge_attr: Features of the edges of `part.edge_index`, where edge_dim is given; `part.edge_attr` if None.
                (edges, edge_dim)
            seed: Names the dropout's masks, the same number on every rank and another one in each step; None draws
                one from torch's generator.

        Returns:
            The mean of the heads where concat is False. (num_owned, out_channels)

        Raises:
            TypeError: x is of another type or on a device.
            ValueError: x or edge_attr has another shape, or edge_attr is missing.
        """
        out: torch.Tensor = self.attend(x, part, edge_attr, seed)
        return out

    @override
    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


class SAGEConv(GraphSage, torch.nn.Module):
    """`torch_geometric.nn.SAGEConv` on a part: `help` shows the arguments at `__init__`, as `GraphSage` has them.

    A `state_dict` of either loads into the other, and the same torch seed gives the same initial weights.
    """

    operations: ClassVar[Operations] = OPERATIONS
    name: ClassVar[str] = "ug.torch.SAGEConv"

    @override
    def linear(self, in_channels: int, out_channels: int, bias: bool, dtype: Any) -> torch.nn.Linear:
        return torch.nn.Linear(in_channels, out_channels, bias, dtype=dtype)

    @override
    def normalized(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(rows, dim=-1)

    @override
    def reset_parameters(self) -> None:
        """Draw new weights, as PyG does."""
        for layer in self.children():
            if isinstance(layer, torch.nn.Linear):
                layer.reset_parameters()

    @override
    def forward(self, x: torch.Tensor, part: GraphPart) -> torch.Tensor:
        """Return the rows of the owned nodes; all ranks must call it. (num_owned, out_channels)

        Args:
            x: Rows of the owned nodes, float32 or float64 in the host's memory. (num_owned, in_channels)
            part: This rank's part.

        Raises:
            TypeError: x is of another type or on a device.
            ValueError: x has another shape.
        """
        out: torch.Tensor = self.propagate(x, part)
        return out

    @override
    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"
