"""SAGEConv: PyG's parameters and results, without a message in memory."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from unilaunch_graph.mindspore.edges import edges_of
from unilaunch_graph.mindspore.exchange import halo
from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.operators.neighbours import Neighbours
from unilaunch_mindspore.linear import Apply, OnHost


class SAGEConv(nn.Cell):  # type: ignore[misc]
    """GraphSAGE (Hamilton, Ying and Leskovec, NeurIPS 2017) with the parameters of `ug.torch.SAGEConv` and of PyG's.

    Edge weights are not used, as PyG uses none. Where out_channels is the narrower, rows are multiplied by lin_l's
    weight before they are exchanged and summed.

    Args:
        in_channels: Width of x.
        out_channels: Width of the result.
        aggr: "mean" or "sum".
        root_weight: Whether to add a linear map of the node's own row.
        bias: Whether lin_l has a bias.
        dtype: Type of the parameters.

    Raises:
        ValueError: *aggr* is another one.
    """

    def __init__(
        self, in_channels: int, out_channels: int, aggr: str = "mean", root_weight: bool = True, bias: bool = True,
        dtype: ms.dtype.Type = ms.float32,
    ) -> None:  # fmt: skip
        super().__init__()
        if aggr not in {"mean", "sum"}:
            raise ValueError(f"ug.mindspore.SAGEConv: aggr={aggr!r}: expected 'mean' or 'sum'")
        self.aggr, self.is_narrowing = aggr, out_channels < in_channels
        self.lin_l = nn.Dense(in_channels, out_channels, has_bias=bias, dtype=dtype)
        self.lin_r = nn.Dense(in_channels, out_channels, has_bias=False, dtype=dtype) if root_weight else None

    def construct(self, x: Tensor, part: GraphPart) -> Tensor:
        """Return the rows of the owned nodes; all ranks must call it. (num_owned, out_channels)

        Args:
            x: Rows of the owned nodes, float32 or float64. (num_owned, in_channels)
            part: This rank's part.

        Raises:
            ValueError: x does not have num_owned rows.
        """
        weight = self.lin_l.weight.T
        if self.is_narrowing:
            out = self._aggregate(ops.mm(x, weight), part)
        else:
            out = ops.mm(self._aggregate(x, part), weight)
        if self.lin_l.has_bias:
            out = out + self.lin_l.bias
        return out if self.lin_r is None else out + self.lin_r(x)

    def _aggregate(self, rows: Tensor, part: GraphPart) -> Tensor:
        made: Any = part.operators.made
        key = self.aggr, rows.dtype
        if key not in made:
            dtype: Any = np.dtype(np.float64 if rows.dtype == ms.float64 else np.float32)
            made[key] = Apply(OnHost(Neighbours(edges_of(part, self_loops=False), dtype, mean=self.aggr == "mean")))
        out: Tensor = made[key](halo(rows, part))
        return out
