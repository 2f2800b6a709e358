"""SAGEConv on either framework: arguments, checks, and the steps of a call."""

from typing import Any

from unilaunch_graph.network.checks import check_width
from unilaunch_graph.network.exchange import halo
from unilaunch_graph.network.layer import Layer
from unilaunch_graph.operators.neighbours import Neighbours, NeighboursOfAllParts


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
        rows = x if self.lin is None else self.framework.relu(self.lin(x))
        if self.out_channels < self.in_channels and self.framework.is_plain(self.lin_l):
            out = self._aggregate(self.framework.product(rows, self.lin_l.weight.T), part)
            out = out if self.lin_l.bias is None else self.framework.biased(out, self.lin_l.bias)
        else:
            out = self.lin_l(self._aggregate(rows, part))
        if self.lin_r is not None:
            out = out + self.lin_r(x)
        return self.normalized(out) if self.normalize else out

    def normalized(self, rows: Any) -> Any:
        """Return each row divided by its Euclidean norm."""
        raise NotImplementedError

    def _aggregate(self, rows: Any, part: Any) -> Any:
        edges, use = self.edges_of(part, self_loops=False), self.framework
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
