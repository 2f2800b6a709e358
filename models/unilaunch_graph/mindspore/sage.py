"""GraphSAGE's convolution over all parts."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from unilaunch_graph.mindspore.exchange import halo
from unilaunch_graph.mindspore.part import GraphPart


class SAGEConv(nn.Cell):  # type: ignore[misc]
    """W_l mean(neighbours) + W_r own row: Hamilton, Ying and Leskovec (NeurIPS 2017), algorithm 1 with the mean.

    Its parameters are those of PyG's `SAGEConv`: `lin_l.weight`, `lin_l.bias`, `lin_r.weight`. No message is in memory,
    and the rows that travel are the narrower ones, x or x W_l.

    Args:
        in_channels: Columns of the rows.
        out_channels: Columns of the result.
        root_weight: Add W_r times the node's own row.
        bias: Add a bias.
        dtype: Type of the parameters.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, root_weight: bool = True, bias: bool = True,
        dtype: ms.dtype.Type = ms.float32,
    ) -> None:  # fmt: skip
        super().__init__()
        self.is_narrowing = out_channels < in_channels
        self.lin_l = nn.Dense(in_channels, out_channels, has_bias=bias, dtype=dtype)
        self.lin_r = nn.Dense(in_channels, out_channels, has_bias=False, dtype=dtype) if root_weight else None

    def construct(self, x: Tensor, part: GraphPart) -> Tensor:
        """Return the owned rows of the next layer. (num_owned, in_channels) -> (num_owned, out_channels)"""
        weight = self.lin_l.weight.T
        if self.is_narrowing:
            out = part.neighbor_mean(halo(ops.mm(x, weight), part))
        else:
            out = ops.mm(part.neighbor_mean(halo(x, part)), weight)
        if self.lin_l.has_bias:
            out = out + self.lin_l.bias
        return out if self.lin_r is None else out + self.lin_r(x)
