"""GATConv: PyG's parameters and results, without a message in memory."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.common.initializer import XavierUniform, initializer

from unilaunch_graph.mindspore.edges import edges_of
from unilaunch_graph.mindspore.exchange import halo
from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.operators.attention import Attention, Inputs
from unilaunch_graph.operators.edge_dropout import EdgeDropout
from unilaunch_mindspore.linear import FirstDerivative


class GATConv(nn.Cell):  # type: ignore[misc]
    """Graph attention (Velickovic et al., ICLR 2018) with the parameters of `ug.torch.GATConv` and of PyG's.

    Every result has the same bits in each run. With dropout, the mask of an edge depends on a seed and on the global
    ids of the edge's ends: any number of parts drops the same, and PyTorch too.

    Args:
        in_channels: Width of x.
        out_channels: Width of each head.
        heads: Number of heads.
        concat: Whether to concatenate the heads, or to average them.
        negative_slope: Slope of the leaky ReLU below 0.
        dropout: Probability that an edge's attention is dropped in training, below 1.
        add_self_loops: Whether to replace the graph's self-loops by one at each node.
        bias: Whether to add a bias.
        dtype: Type of the parameters.

    Raises:
        ValueError: *dropout* is not in [0, 1).
    """

    def __init__(
        self, in_channels: int, out_channels: int, heads: int = 1, concat: bool = True, negative_slope: float = 0.2,
        dropout: float = 0.0, add_self_loops: bool = True, bias: bool = True, dtype: ms.dtype.Type = ms.float32,
    ) -> None:  # fmt: skip
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"ug.mindspore.GATConv: dropout={dropout}: a probability from 0 to below 1")
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout, self.add_self_loops = negative_slope, dropout, add_self_loops
        width = heads * out_channels
        self.lin = nn.Dense(in_channels, width, weight_init=XavierUniform(), has_bias=False, dtype=dtype)
        shape = (1, heads, out_channels)
        self.att_src = Parameter(initializer(XavierUniform(), shape, dtype))
        self.att_dst = Parameter(initializer(XavierUniform(), shape, dtype))
        self.bias = Parameter(initializer("zeros", width if concat else out_channels, dtype)) if bias else None

    def construct(self, x: Tensor, part: GraphPart, seed: int | None = None) -> Tensor:
        """Return the rows of the owned nodes; all ranks must call it. (num_owned, heads * out_channels)

        Args:
            x: Rows of the owned nodes, float32 or float64. (num_owned, in_channels)
            part: This rank's part.
            seed: Names the dropout's masks: the same number on every rank, and another one in each step.

        Returns:
            The mean of the heads where concat is False. (num_owned, out_channels)

        Raises:
            ValueError: x does not have num_owned rows, or there is dropout and no seed.
        """
        narrower = self.in_channels < self.heads * self.out_channels  # the exchange carries the fewer columns
        rows = self.lin(halo(x, part)) if narrower else halo(self.lin(x), part)
        attention = Attention(edges_of(part, self_loops=self.add_self_loops), self.negative_slope)
        out = _Attend(attention, self._dropout(x, part, seed))(rows, self.att_src[0], self.att_dst[0])
        if not self.concat:
            out = out.reshape(-1, self.heads, self.out_channels).mean(1)
        return out if self.bias is None else out + self.bias

    def _dropout(self, x: Tensor, part: GraphPart, seed: int | None) -> EdgeDropout | None:
        if not self.training or not self.dropout:
            return None
        if seed is None:
            raise ValueError("ug.mindspore.GATConv: dropout needs a seed in each step: conv(x, part, seed=step)")
        nodes = np.concatenate((part.owned, part.arrays.halo))
        return EdgeDropout(nodes, part.num_owned, seed, self.dropout, x.asnumpy().dtype)


class _Attend(nn.Cell):  # type: ignore[misc]
    """`operators.attention` as a differentiable cell, for one call."""

    def __init__(self, attention: Attention, dropout: EdgeDropout | None) -> None:
        super().__init__()
        self.attention, self.edge_dropout = attention, dropout
        self.once = FirstDerivative()

    def construct(self, *inputs: Tensor) -> Tensor:
        """Return the weighted sums. rows (num_sources, width), att_src and att_dst (heads, channels)"""
        self.attended = self.attention.forward(_inputs(inputs), self.edge_dropout)
        return Tensor.from_numpy(self.attended.rows)

    def bprop(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the inputs."""
        *inputs, _, grad = arguments
        found = self.attention.backward(_inputs(inputs), self.attended, grad.asnumpy(), self.edge_dropout)
        return tuple(self.once(grad, Tensor.from_numpy(field)) for field in (found.rows, found.att_src, found.att_dst))


def _inputs(tensors: "tuple[Tensor, ...] | list[Tensor]") -> Inputs:
    return Inputs(*(tensor.asnumpy() for tensor in tensors))
