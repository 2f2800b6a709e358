"""GATConv: PyG's parameters and results, without a message in memory."""

from typing import Any, ClassVar

import torch
from typing_extensions import override

from unilaunch_graph.network.gat import GraphAttention
from unilaunch_graph.network.layer import Framework
from unilaunch_graph.torch.layer import TORCH
from unilaunch_graph.torch.part import GraphPart


class GATConv(GraphAttention, torch.nn.Module):
    """`torch_geometric.nn.GATConv` on a part: `help` shows the arguments at `__init__`, as `GraphAttention` has them.

    A `state_dict` of either loads into the other, and the same torch seed gives the same initial weights.
    """

    framework: ClassVar[Framework] = TORCH
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
