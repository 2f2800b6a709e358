"""SAGEConv: PyG's parameters and results, without a message in memory."""

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from typing_extensions import override

from unilaunch_graph.mindspore.layer import MINDSPORE, Linear
from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.mindspore.pynative import only_pynative
from unilaunch_graph.network.sage import GraphSage

#: The least norm that a row is divided by, as in PyTorch.
_LEAST_NORM = 1e-12


class SAGEConv(GraphSage, nn.Cell):  # type: ignore[misc]
    """`ug.torch.SAGEConv` in MindSpore: `help` shows the arguments at `__init__`, as `GraphSage` has them."""

    framework, name = MINDSPORE, "ug.mindspore.SAGEConv"

    @override
    def linear(self, in_channels: int, out_channels: int, bias: bool, dtype: Any) -> Linear:
        return Linear(in_channels, out_channels, has_bias=bias, dtype=dtype or ms.float32)

    @override
    def normalized(self, rows: Tensor) -> Tensor:
        squares = (rows * rows).sum(1, keepdims=True)
        return rows / ops.maximum(squares, Tensor(_LEAST_NORM**2, rows.dtype)).sqrt()  # sqrt'(0) is infinite

    def construct(self, x: Tensor, part: GraphPart) -> Tensor:
        """Return the rows of the owned nodes; all ranks must call it. (num_owned, out_channels)

        Args:
            x: Rows of the owned nodes, float32 or float64. (num_owned, in_channels)
            part: This rank's part.

        Raises:
            ValueError: x does not have num_owned rows.
        """
        only_pynative()
        return self.propagate(x, part)
