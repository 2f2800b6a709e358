"""GATConv: PyG's parameters and results, without a message in memory."""

from typing import Any

import torch
from typing_extensions import override

from unilaunch_graph.operators.attention import Attended, Attention, Inputs
from unilaunch_graph.operators.edge_dropout import EdgeDropout
from unilaunch_graph.torch.edges import LayerEdges, check_rows, edges_of, pool
from unilaunch_graph.torch.halo import halo
from unilaunch_graph.torch.part import GraphPart


class _Attend(torch.autograd.Function):
    """`operators.attention` as a differentiable function."""

    @staticmethod
    @override
    def forward(
        ctx: Any, attention: Attention, dropout: EdgeDropout | None, *inputs: torch.Tensor | None
    ) -> torch.Tensor:
        attended = attention.forward(_inputs(inputs), dropout)
        out = torch.from_numpy(attended.rows)
        ctx.attention, ctx.dropout, ctx.log_sums = attention, dropout, attended.log_sums
        ctx.save_for_backward(out, *inputs)
        return out

    @staticmethod
    @override
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # torch's once_differentiable does not notice autograd.grad(..., inputs), which then lacks this term.
        if torch.is_grad_enabled():
            raise RuntimeError("ug.torch.GATConv has no second derivative: leave create_graph=True out")
        out, *inputs = ctx.saved_tensors
        attended = Attended(out.numpy(), ctx.log_sums)
        found = ctx.attention.backward(_inputs(inputs), attended, gradient.numpy(), ctx.dropout)
        fields = (found.rows, found.att_src, found.att_dst, found.edge_terms)
        return None, None, *(None if field is None else torch.from_numpy(field) for field in fields)


def _inputs(tensors: Any) -> Inputs:
    fields: Any = (None if tensor is None else tensor.detach().numpy() for tensor in tensors)
    return Inputs(*fields)


class GATConv(torch.nn.Module):
    """Graph attention (Velickovic et al., ICLR 2018) with the parameters and results of `torch_geometric.nn.GATConv`.

    A `state_dict` of either loads into the other, and the same torch seed gives the same initial weights. PyG makes a
    message of heads * out_channels numbers for each edge; this layer makes none. Every result has the same bits in each
    run. With dropout, the mask of an edge depends on a seed and on the global ids of the edge's ends: where all ranks
    have the same seed, they drop what one process would drop.

    Args:
        in_channels: Width of x.
        out_channels: Width of each head.
        heads: Number of heads.
        concat: Whether to concatenate the heads, or to average them.
        negative_slope: Slope of the leaky ReLU below 0.
        dropout: Probability that an edge's attention is dropped in training, below 1.
        add_self_loops: Whether to replace the graph's self-loops by one at each node.
        edge_dim: Width of the edge features; None if they are not used.
        fill_value: Edge features of the added self-loops: a number, a tensor (edge_dim,), or "mean" or "add" over the
            node's in-edges.
        bias: Whether to add a bias.
        residual: Whether to add a learned linear map of x.

    Raises:
        ValueError: An argument has a value that is not supported.
    """

    def __init__(
        self, in_channels: int, out_channels: int, heads: int = 1, concat: bool = True, negative_slope: float = 0.2,
        dropout: float = 0.0, add_self_loops: bool = True, edge_dim: int | None = None,
        fill_value: float | torch.Tensor | str = "mean", bias: bool = True, residual: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        _check(in_channels, dropout, fill_value)
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout = negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        width = heads * out_channels
        self.lin = torch.nn.Linear(in_channels, width, bias=False)
        self.att_src = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else torch.nn.Linear(edge_dim, width, bias=False)
        self.att_edge = None if edge_dim is None else torch.nn.Parameter(torch.empty(1, heads, out_channels))
        total = width if concat else out_channels
        self.res = torch.nn.Linear(in_channels, total, bias=False) if residual else None
        self.bias = torch.nn.Parameter(torch.empty(total)) if bias else None
        self.reset_parameters()

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
        check_rows("GATConv", x, part)
        edges = edges_of(part, self_loops=self.add_self_loops)
        narrower = self.in_channels < self.heads * self.out_channels  # the exchange carries the fewer columns
        rows = self.lin(halo(x, part)) if narrower else halo(self.lin(x), part)
        attention = Attention(edges.edges, self.negative_slope, pool())
        terms = self._edge_terms(part, edges, edge_attr)
        out: torch.Tensor = _Attend.apply(  # type: ignore[no-untyped-call]
            attention, self._dropout(x, part, edges, seed), rows, self.att_src[0], self.att_dst[0], terms
        )
        if not self.concat:
            out = out.view(-1, self.heads, self.out_channels).mean(dim=1)
        if self.res is not None:
            out = out + self.res(x)
        return out if self.bias is None else out + self.bias

    def _dropout(self, x: torch.Tensor, part: GraphPart, edges: LayerEdges, seed: int | None) -> EdgeDropout | None:
        if not self.training or not self.dropout:
            return None
        if "nodes" not in edges.made:
            edges.made["nodes"] = halo(part.owned, part).numpy()
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        return EdgeDropout(edges.made["nodes"], part.num_owned, seed, self.dropout, x.detach().numpy().dtype)

    def _edge_terms(self, part: GraphPart, edges: LayerEdges, edge_attr: torch.Tensor | None) -> torch.Tensor | None:
        """Return att_edge . (lin_edge x features) of each edge; the two weights are multiplied first. (heads, edges)"""
        if self.lin_edge is None or self.att_edge is None:
            return None
        given = part.edge_attr if edge_attr is None else edge_attr
        features = given[:, None] if given is not None and given.ndim == 1 else given
        expected = part.edge_index.shape[1], self.edge_dim
        if features is None or features.shape != expected:
            shape = None if given is None else tuple(given.shape)
            raise ValueError(f"ug.torch.GATConv: edge features have the shape {shape}: expected {expected}")
        features = features.to(self.att_edge.dtype)
        if edges.chosen is not None:
            features = torch.cat((features, self._fill(part, features)))[edges.chosen]
        weights = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        return torch.einsum("hc,hck->hk", self.att_edge[0], weights) @ features.T

    def _fill(self, part: GraphPart, features: torch.Tensor) -> torch.Tensor:
        """Return the features of the added self-loops. (num_owned, edge_dim)"""
        fill = features.new_zeros(part.num_owned, features.shape[1])
        if not isinstance(self.fill_value, str):
            return fill + torch.as_tensor(self.fill_value, dtype=features.dtype)
        source, target = part.edge_index
        kept = source != target
        fill = fill.index_add(0, target[kept], features[kept])
        if self.fill_value == "mean":
            fill = fill / torch.bincount(target[kept], minlength=part.num_owned).clamp(min=1)[:, None]
        return fill

    @override
    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


def _check(in_channels: object, dropout: float, fill_value: object) -> None:
    if not isinstance(in_channels, int) or in_channels < 1:
        raise ValueError(f"ug.torch.GATConv: in_channels={in_channels}: a width of 1 or more; no pair, no -1")
    if not 0 <= dropout < 1:
        raise ValueError(f"ug.torch.GATConv: dropout={dropout}: a probability from 0 to below 1")
    if isinstance(fill_value, str) and fill_value not in {"mean", "add"}:
        raise ValueError(f"ug.torch.GATConv: fill_value={fill_value!r}: a number, a tensor, 'mean' or 'add'")
