"""SAGEConv: PyG's parameters and results, without a message in memory."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its name in every PyTorch program)
from typing_extensions import override

from unilaunch_graph.operators.neighbours import Neighbours
from unilaunch_graph.torch.edges import check_rows, edges_of, pool
from unilaunch_graph.torch.halo import halo
from unilaunch_graph.torch.part import GraphPart
from unilaunch_torch.linear import OnHost, apply


class SAGEConv(torch.nn.Module):
    """GraphSAGE (Hamilton, Ying and Leskovec, NeurIPS 2017) with the parameters of `torch_geometric.nn.SAGEConv`.

    A `state_dict` of either loads into the other, and the same torch seed gives the same initial weights. Edge weights
    are not used, as PyG uses none. Where out_channels is the narrower, rows are multiplied by lin_l's weight before
    they are exchanged and summed.

    Args:
        in_channels: Width of x.
        out_channels: Width of the result.
        aggr: "mean" or "sum" (PyG's "add" is the same).
        normalize: Whether to divide each row of the result by its Euclidean norm.
        root_weight: Whether to add a linear map of the node's own row.
        project: Whether neighbours' rows go through a linear layer and a ReLU first (equation 3 of the paper).
        bias: Whether lin_l has a bias.

    Raises:
        ValueError: An argument has a value that is not supported.
    """

    def __init__(
        self, in_channels: int, out_channels: int, aggr: str = "mean", normalize: bool = False,
        root_weight: bool = True, project: bool = False, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(in_channels, int) or in_channels < 1:
            raise ValueError(f"ug.torch.SAGEConv: in_channels={in_channels}: a width of 1 or more; no pair, no -1")
        if aggr not in {"mean", "sum", "add"}:
            raise ValueError(
                f"ug.torch.SAGEConv: aggr={aggr!r}: 'mean' or 'sum'; for others use torch_geometric.nn.SAGEConv with "
                "ug.torch.distribute"
            )
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        if project:
            self.lin = torch.nn.Linear(in_channels, in_channels)
        self.lin_l = torch.nn.Linear(in_channels, out_channels, bias=bias)
        if root_weight:
            self.lin_r = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.reset_parameters()

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
        check_rows("SAGEConv", x, part)
        rows = self.lin(x).relu() if self.project else x
        if self.out_channels < self.in_channels:
            out = self._aggregate(rows @ self.lin_l.weight.T, part)
            out = out if self.lin_l.bias is None else out + self.lin_l.bias
        else:
            out = self.lin_l(self._aggregate(rows, part))
        if self.root_weight:
            out = out + self.lin_r(x)
        return F.normalize(out, dim=-1) if self.normalize else out

    def _aggregate(self, rows: torch.Tensor, part: GraphPart) -> torch.Tensor:
        edges = edges_of(part, self_loops=False)
        dtype = np.dtype(str(rows.dtype).removeprefix("torch."))
        key = self.aggr == "mean", dtype
        if key not in edges.made:
            edges.made[key] = OnHost(Neighbours(edges.edges, dtype, pool(), mean=self.aggr == "mean"))
        return apply(edges.made[key], halo(rows, part))

    @override
    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"
