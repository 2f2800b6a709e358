"""The layers on either framework, without a message in memory: arguments, checks, and the steps of a call.

`Layer` is what they share; `Operations` is what they need of one.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.arrays import FloatType, HostFunction
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.network.functions import check_matrix, check_probability, check_width, halo
from unilaunch_graph.network.part import PartFields
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.operators.attention import Attention, EdgeDropout, additive_scores
from unilaunch_graph.operators.edges import FILLS, ChosenEdges, ChosenFeatures, choose_edges, choose_features
from unilaunch_graph.operators.halo_edges import Neighbours, NeighboursOfAllParts
from unilaunch_graph.partition.part import Part, merge_in_edges
from unilaunch_graph.purpose import Purpose

#: Whether the ranks of these collectives share memory: it is asked once.
_SHARED: WeakKeyDictionary[Collectives, bool] = WeakKeyDictionary()


class Operations(Protocol):
    """The functions of a framework that a layer uses."""

    def check(self, layer: str, rows: Any) -> None:
        """Refuse rows of a type, or on a device, that the layer cannot use."""

    def call(self, function: HostFunction, *inputs: Any) -> Any:
        """Return a function of arrays, applied to tensors."""

    def apply(self, operator: Any, rows: Any) -> Any:
        """Return a linear operator on arrays, applied to a tensor."""

    def product(self, rows: Any, weight: Any) -> Any:
        """Return the product of two matrices."""

    def biased(self, rows: Any, bias: Any) -> Any:
        """Return each row plus *bias*."""

    def relu(self, rows: Any) -> Any:
        """Return max(0, rows)."""

    def identity(self, rows: Any) -> Any:
        """Return the identity matrix of as many columns as *rows* has, of its type."""

    def is_plain(self, linear: Any) -> bool:
        """Return whether a call of a linear map is x @ weight.T + bias alone: no hook, no adapter in its place."""

    def dtype(self, rows: Any) -> FloatType:
        """Return numpy's type of a tensor."""

    def edges(self, part: Any) -> tuple[NDArray[Any], dict[Any, Any]]:
        """Return both ends of each edge (2, edges), and the cache for the layers' preparations of these edges."""

    def arrays(self, part: Any) -> Part:
        """Return a part's arrays, with a row for each row of its tensors."""

    def together(self, operator: Any, rows: Any, part: Any) -> Any:
        """Return a linear operator on arrays, in which all ranks take part, applied to a tensor."""

    def pool(self) -> ThreadPoolExecutor | None:
        """Return the threads that share the work; None for one thread."""


class Layer:
    """A layer of unilaunch on either framework.

    Attributes:
        operations: The functions of the framework.
        name: The name of the class, for messages.
    """

    operations: ClassVar[Operations]
    name: ClassVar[str]

    def reset_parameters(self) -> None:
        """Draw new weights; MindSpore draws them when it makes the parameters."""

    def check_input(self, x: Any, part: Any) -> None:
        """Refuse an input that the layer cannot use.

        Raises:
            TypeError: Its type is not one that the framework's layers take, or *part* is something else.
            ValueError: It is not a matrix with one row for each owned node.
        """
        if not isinstance(part, PartFields):
            raise TypeError(f"{self.name}: takes the part that load returned, not edge_index: conv(x, part)")
        self.operations.check(self.name, x)
        check_matrix(self.name, x, part.num_owned)

    def edges_of(self, part: Any, *, self_loops: bool) -> ChosenEdges:
        """Return the edges of *part*, made once; *self_loops* as in `choose_edges`."""
        ends, made = self.operations.edges(part)
        if self_loops not in made:
            made[self_loops] = choose_edges(ends, part.num_owned, part.num_owned + part.num_halo, self_loops=self_loops)
        chosen: ChosenEdges = made[self_loops]
        return chosen

    def _exchange_of(self, rows: Any, part: Any) -> HaloExchange | None:
        """Return the way to the halo rows, if partial sums shall stand for some of them. All ranks must call it.

        None: halo rows travel. They do so in shared memory, and of `part.x`, whose halo PyTorch keeps.
        """
        if part.world_size == 1 or SIMULATED.get() is not None or rows is part.x or self._shares_memory(part):
            return None
        (ends, made), ranks = self.operations.edges(part), part.ranks
        if ranks.any(
            is_here="exchange" not in made, purpose=Purpose.HALO
        ):  # another rank may have other edges than before
            arrays = self.operations.arrays(part)
            has_others = not np.array_equal(ends, merge_in_edges(arrays).ends)
            exchange = HaloExchange(arrays, ranks.collectives)
            made["exchange"] = None if ranks.any(is_here=has_others, purpose=Purpose.HALO) else exchange
        found: HaloExchange | None = made["exchange"]
        return found

    def _shares_memory(self, part: Any) -> bool:
        """Return whether every rank writes rows where their receiver reads them; all ranks must call it."""
        collectives = part.ranks.collectives
        if collectives not in _SHARED:
            exchange = HaloExchange(self.operations.arrays(part), collectives)
            _SHARED[collectives] = exchange.shares_memory()
        return _SHARED[collectives]


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
        use = self.operations
        self.check_input(x, part)
        edges = self.edges_of(part, self_loops=self.add_self_loops)
        narrower = self.in_channels < self.heads * self.out_channels  # the exchange carries the fewer columns
        rows = self.lin(halo(x, part)) if narrower else halo(self.lin(x), part)
        dropout = self.edge_dropout(x, part, edges, seed)
        function = Attention(edges.edges, additive_scores(self.negative_slope), use.pool(), dropout)
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
        return EdgeDropout(edges.made["nodes"], part.num_owned, seed, self.dropout, self.operations.dtype(x))

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
        weights = self.lin_edge(self.operations.identity(features)).T.reshape(self.heads, self.out_channels, -1)
        products = self.att_edge.reshape(self.heads, self.out_channels, 1) * weights
        return [self.operations.product(products.sum(1), features.T)]

    def chosen_features(self, part: Any, edges: ChosenEdges, features: Any) -> Any:
        """Return the features of the edges that the layer sums over, in their order. (chosen edges, width)"""
        if edges.places is None:
            return features
        if not self.add_self_loops:
            return features[edges.places]
        return self.operations.call(self._chosen(part, edges, edges.places), features)

    def _chosen(self, part: Any, edges: ChosenEdges, places: Any) -> ChosenFeatures:
        fill = self.fill_value if isinstance(self.fill_value, str) else None
        key = "features", fill
        ends = self.operations.edges(part)[0]
        if key not in edges.made:
            edges.made[key] = choose_features(ends, places, part.num_owned, fill)
        loops = None if fill else places >= ends.shape[1]
        return ChosenFeatures(edges.made[key], loops, None if fill else self.fill_value)


class GraphSage(Layer):
    """GraphSAGE (Hamilton, Ying and Leskovec, NeurIPS 2017) with the parameters of `torch_geometric.nn.SAGEConv`.

    Edge weights are not used, as PyG uses none. Where out_channels is the narrower, rows are multiplied by lin_l's
    weight before they are exchanged and summed; not so if lin_l has hooks, or something else stands in its place.
    """

    in_channels: int
    out_channels: int
    aggr: str
    normalize: bool
    root_weight: bool
    project: bool
    lin: Any
    lin_l: Any
    lin_r: Any

    def __init__(
        self, in_channels: int, out_channels: int, aggr: str = "mean", normalize: bool = False,
        root_weight: bool = True, project: bool = False, bias: bool = True, dtype: Any = None,
    ) -> None:  # fmt: skip
        """Make the layer with new weights.

        Args:
            in_channels: Width of x.
            out_channels: Width of the result.
            aggr: "mean" or "sum" (PyG's "add" is the same).
            normalize: Whether to divide each row of the result by its Euclidean norm.
            root_weight: Whether to add a linear map of the node's own row.
            project: Whether neighbours' rows go through a linear layer and a ReLU first (equation 3 of the paper).
            bias: Whether lin_l has a bias.
            dtype: Type of the parameters; None takes float32, or PyTorch's default type.

        Raises:
            ValueError: An argument has a value that is not supported.
        """
        super().__init__()
        check_width(self.name, in_channels)
        if aggr not in {"mean", "sum", "add"}:
            raise ValueError(
                f"{self.name}: aggr={aggr!r}: 'mean' or 'sum'; for others use torch_geometric.nn.SAGEConv with "
                "ug.torch.distribute"
            )
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        self.lin = self.linear(in_channels, in_channels, True, dtype) if project else None
        self.lin_l = self.linear(in_channels, out_channels, bias, dtype)
        self.lin_r = self.linear(in_channels, out_channels, False, dtype) if root_weight else None
        self.reset_parameters()

    def linear(self, in_channels: int, out_channels: int, bias: bool, dtype: Any) -> Any:
        """Return a linear map."""
        raise NotImplementedError

    def propagate(self, x: Any, part: Any) -> Any:
        """Return the rows of the owned nodes; the arguments are those of a call."""
        self.check_input(x, part)
        rows = x if self.lin is None else self.operations.relu(self.lin(x))
        if self.out_channels < self.in_channels and self.operations.is_plain(self.lin_l):
            out = self._aggregate(self.operations.product(rows, self.lin_l.weight.T), part)
            out = out if self.lin_l.bias is None else self.operations.biased(out, self.lin_l.bias)
        else:
            out = self.lin_l(self._aggregate(rows, part))
        if self.lin_r is not None:
            out = out + self.lin_r(x)
        return self.normalized(out) if self.normalize else out

    def normalized(self, rows: Any) -> Any:
        """Return each row divided by its Euclidean norm."""
        raise NotImplementedError

    def _aggregate(self, rows: Any, part: Any) -> Any:
        edges, use = self.edges_of(part, self_loops=False), self.operations
        exchange = self._exchange_of(rows, part)
        mean, dtype = self.aggr == "mean", use.dtype(rows)
        key = mean, dtype, exchange
        if key not in edges.made:
            edges.made[key] = (
                NeighboursOfAllParts(exchange, dtype, use.pool(), mean=mean)
                if exchange
                else Neighbours(edges.edges, dtype, use.pool(), mean=mean)
            )
        if exchange:
            return use.together(edges.made[key], rows, part)
        return use.apply(edges.made[key], halo(rows, part))
