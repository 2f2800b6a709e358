"""GATConv on either framework: arguments, checks, and the steps of a call."""

from typing import Any

import numpy as np

from unilaunch_graph.network.checks import check_probability, check_width
from unilaunch_graph.network.exchange import halo
from unilaunch_graph.network.layer import Layer
from unilaunch_graph.operators.attention import Attention, AttentionCall
from unilaunch_graph.operators.edge_dropout import EdgeDropout
from unilaunch_graph.operators.edge_features import FILLS, ChosenFeatures, choose_features
from unilaunch_graph.operators.edges import ChosenEdges
from unilaunch_graph.operators.scores import AdditiveScores


class GraphAttention(Layer):
    """Graph attention (Velickovic et al., ICLR 2018) with the parameters and results of `torch_geometric.nn.GATConv`.

    PyG makes a message of heads * out_channels numbers for each edge; this layer makes none. Every result has the same
    bits in each run. With dropout, the mask of an edge depends on a seed and on the global ids of the edge's ends: for
    one seed any number of parts drops the same, on both frameworks.
    """

    in_channels: int
    out_channels: int
    heads: int
    concat: bool
    negative_slope: float
    dropout: float
    add_self_loops: bool
    edge_dim: int | None
    fill_value: Any
    lin: Any
    att_src: Any
    att_dst: Any
    lin_edge: Any
    att_edge: Any
    res: Any
    bias: Any

    def __init__(
        self, in_channels: int, out_channels: int, heads: int = 1, concat: bool = True, negative_slope: float = 0.2,
        dropout: float = 0.0, add_self_loops: bool = True, edge_dim: int | None = None, fill_value: Any = "mean",
        bias: bool = True, residual: bool = False, dtype: Any = None,
    ) -> None:  # fmt: skip
        """Make the layer with new weights.

        Args:
            in_channels: Width of x.
            out_channels: Width of each head.
            heads: Number of heads.
            concat: Whether to concatenate the heads, or to average them.
            negative_slope: Slope of the leaky ReLU below 0.
            dropout: Probability that an edge's attention is dropped in training, below 1.
            add_self_loops: Whether to replace the graph's self-loops by one at each node.
            edge_dim: Width of the edge features; None if they are not used.
            fill_value: Edge features of the added self-loops: a number, an array or tensor (edge_dim,), or "mean" or
                "add" over the node's in-edges.
            bias: Whether to add a bias.
            residual: Whether to add a learned linear map of x.
            dtype: Type of the parameters; None takes float32, or PyTorch's default type.

        Raises:
            ValueError: An argument has a value that is not supported.
        """
        super().__init__()
        check_width(self.name, in_channels)
        check_probability(f"{self.name}: dropout", dropout)
        if isinstance(fill_value, str) and fill_value not in FILLS:
            raise ValueError(f"{self.name}: fill_value={fill_value!r}: a number, a tensor, 'mean' or 'add'")
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout = negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        width = heads * out_channels
        total = width if concat else out_channels
        shape = (1, heads, out_channels)
        self.lin = self.linear(in_channels, width, dtype)
        self.att_src, self.att_dst = self.vector(shape, dtype), self.vector(shape, dtype)
        self.lin_edge = None if edge_dim is None else self.linear(edge_dim, width, dtype)
        self.att_edge = None if edge_dim is None else self.vector(shape, dtype)
        self.res = self.linear(in_channels, total, dtype) if residual else None
        self.bias = self.vector((total,), dtype) if bias else None
        self.reset_parameters()

    def linear(self, in_channels: int, out_channels: int, dtype: Any) -> Any:
        """Return a linear map without a bias."""
        raise NotImplementedError

    def vector(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a parameter: attention (1, heads, out_channels), or the bias, which is zero."""
        raise NotImplementedError

    def draw_seed(self) -> int:
        """Return the seed of a dropout for which the caller has given none."""
        raise NotImplementedError

    def attend(self, x: Any, part: Any, edge_attr: Any, seed: int | None) -> Any:
        """Return the rows of the owned nodes; the arguments are those of a call."""
        use = self.framework
        self.check_input(x, part)
        edges = self.edges_of(part, self_loops=self.add_self_loops)
        narrower = self.in_channels < self.heads * self.out_channels  # the exchange carries the fewer columns
        rows = self.lin(halo(x, part)) if narrower else halo(self.lin(x), part)
        attention = Attention(edges.edges, AdditiveScores(self.negative_slope), use.pool())
        function = AttentionCall(attention, self.edge_dropout(x, part, edges, seed))
        out = use.call(function, rows, self.att_src[0], self.att_dst[0], *self._edge_terms(part, edges, edge_attr))
        if not self.concat:
            out = out.reshape(-1, self.heads, self.out_channels).mean(1)
        if self.res is not None:
            out = out + self.res(x)
        if self.bias is not None:
            return use.biased(out, self.bias)
        return out * 1  # rows that the caller may write to: backward needs the function's own

    def edge_dropout(self, x: Any, part: Any, edges: ChosenEdges, seed: int | None) -> EdgeDropout | None:
        """Return which edges' attention is dropped in this call; None: no dropout."""
        if not self.training or not self.dropout:  # type: ignore[attr-defined]
            return None
        if "nodes" not in edges.made:
            edges.made["nodes"] = np.concatenate((np.asarray(part.owned), part.arrays.halo))
        seed = self.draw_seed() if seed is None else seed
        return EdgeDropout(edges.made["nodes"], part.num_owned, seed, self.dropout, self.framework.dtype(x))

    def _edge_terms(self, part: Any, edges: ChosenEdges, edge_attr: Any) -> list[Any]:
        """Return att_edge . (lin_edge x features) of each edge; the two weights are multiplied first. (heads, edges)"""
        if self.lin_edge is None or self.att_edge is None:
            return []
        given = part.edge_attr if edge_attr is None else edge_attr
        features = given[:, None] if given is not None and given.ndim == 1 else given
        expected = part.edge_index.shape[1], self.edge_dim
        if features is None or tuple(features.shape) != expected:
            shape = None if given is None else tuple(given.shape)
            raise ValueError(f"{self.name}: edge features have the shape {shape}: expected {expected}")
        features = features.to(self.att_edge.dtype)
        features = self.chosen_features(part, edges, features)
        weights = self.lin_edge(self.framework.identity(features)).T.reshape(self.heads, self.out_channels, -1)
        products = self.att_edge.reshape(self.heads, self.out_channels, 1) * weights
        return [self.framework.product(products.sum(1), features.T)]

    def chosen_features(self, part: Any, edges: ChosenEdges, features: Any) -> Any:
        """Return the features of the edges that the layer sums over, in their order. (chosen edges, width)"""
        if edges.places is None:
            return features
        if not self.add_self_loops:
            return features[edges.places]
        return self.framework.call(self._chosen(part, edges, edges.places), features)

    def _chosen(self, part: Any, edges: ChosenEdges, places: Any) -> ChosenFeatures:
        fill = self.fill_value if isinstance(self.fill_value, str) else None
        key = "features", fill
        ends = self.framework.edges(part)[0]
        if key not in edges.made:
            edges.made[key] = choose_features(ends, places, part.num_owned, fill)
        loops = None if fill else places >= ends.shape[1]
        return ChosenFeatures(edges.made[key], loops, None if fill else self.fill_value)
