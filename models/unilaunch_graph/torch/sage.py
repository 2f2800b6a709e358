"""SAGEConv: PyG's parameters and results, without a message in memory."""

from typing import Any, ClassVar

import torch
from typing_extensions import override

from unilaunch_graph.network.layer import Framework
from unilaunch_graph.network.sage import GraphSage
from unilaunch_graph.torch.layer import TORCH
from unilaunch_graph.torch.part import GraphPart


class SAGEConv(GraphSage, torch.nn.Module):
    """`torch_geometric.nn.SAGEConv` on a part: `help` shows the arguments at `__init__`, as `GraphSage` has them.

    A `state_dict` of either loads into the other, and the same torch seed gives the same initial weights.
    """

    framework: ClassVar[Framework] = TORCH
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
