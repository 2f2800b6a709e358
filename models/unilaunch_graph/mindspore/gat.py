"""GATConv: PyG's parameters and results, without a message in memory."""

from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn
from mindspore.common.initializer import XavierUniform, initializer
from typing_extensions import override

from unilaunch_graph.mindspore.layer import MINDSPORE
from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.mindspore.pynative import only_pynative
from unilaunch_graph.network.gat import GraphAttention


class GATConv(GraphAttention, nn.Cell):  # type: ignore[misc]
    """`ug.torch.GATConv` in MindSpore: `help` shows the arguments at `__init__`, as `GraphAttention` has them."""

    framework, name = MINDSPORE, "ug.mindspore.GATConv"

    @override
    def linear(self, in_channels: int, out_channels: int, dtype: Any) -> nn.Dense:
        return nn.Dense(
            in_channels, out_channels, weight_init=XavierUniform(), has_bias=False, dtype=dtype or ms.float32
        )

    @override
    def vector(self, shape: tuple[int, ...], dtype: Any) -> Parameter:
        return Parameter(initializer("zeros" if len(shape) == 1 else XavierUniform(), shape, dtype or ms.float32))

    @override
    def draw_seed(self) -> int:
        raise ValueError(f"{self.name}: dropout needs a seed in each step: conv(x, part, seed=step)")

    def construct(
        self, x: Tensor, part: GraphPart, edge_attr: Tensor | None = None, *, seed: int | None = None
    ) -> Tensor:
        """Return the rows of the owned nodes; all ranks must call it. (num_owned, heads * out_channels)

        Args:
            x: Rows of the owned nodes, float32 or float64. (num_owned, in_channels)
            part: This rank's part.
            edge_attr: Features of the edges of `part.edge_index`, where edge_dim is given; `part.edge_attr` if None.
                (edges, edge_dim)
            seed: Names the dropout's masks: the same number on every rank, and another one in each step.

        Returns:
            The mean of the heads where concat is False. (num_owned, out_channels)

        Raises:
            ValueError: x or edge_attr has another shape, edge_attr is missing, or there is dropout and no seed.
        """
        only_pynative()
        return self.attend(x, part, edge_attr, seed)
