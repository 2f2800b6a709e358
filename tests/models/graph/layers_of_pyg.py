"""Every convolution of PyG: how it is made, and what it is called with, on a whole graph and on a part alike."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch_geometric import nn

WIDTH, EDGE_WIDTH = 8, 3
Layer = torch.nn.Module


@dataclass(frozen=True)
class Case:
    """One layer.

    Attributes:
        make: Makes it.
        call: Calls it with a layer, rows, and a graph or a part; by default with rows and edge_index.
    """

    make: Callable[[], Layer]
    call: Callable[[Layer, torch.Tensor, Any], torch.Tensor] = lambda layer, x, g: layer(x, g.edge_index)


def _mlp(width: int = WIDTH, out: int = WIDTH) -> Layer:
    return torch.nn.Sequential(torch.nn.Linear(width, out), torch.nn.ReLU(), torch.nn.Linear(out, out))


def _weighted(layer: Layer, x: torch.Tensor, g: Any) -> torch.Tensor:
    out: torch.Tensor = layer(x, g.edge_index, g.edge_weight)
    return out


def _attributed(layer: Layer, x: torch.Tensor, g: Any) -> torch.Tensor:
    out: torch.Tensor = layer(x, g.edge_index, edge_attr=g.edge_attr)
    return out


def _kinds(g: Any) -> torch.Tensor:
    """Return one of three types for each edge."""
    kinds: torch.Tensor = g.edge_attr.argmax(1)
    return kinds


def _typed(layer: Layer, x: torch.Tensor, g: Any) -> torch.Tensor:
    out: torch.Tensor = layer(x, g.edge_index, _kinds(g))
    return out


def _kinds_of_nodes(x: torch.Tensor) -> torch.Tensor:
    return (x[:, 0] > 0).long()


W = WIDTH
E = EDGE_WIDTH
#: The classes that can be tried, by name; of SplineConv with `spline_basis` and `spline_weighting` below.
CASES: dict[str, Case] = {
    "SimpleConv": Case(nn.SimpleConv, _weighted),
    "GCNConv": Case(lambda: nn.GCNConv(W, W), _weighted),
    "ChebConv": Case(lambda: nn.ChebConv(W, W, K=3), _weighted),
    "SAGEConv": Case(lambda: nn.SAGEConv(W, W, project=True)),
    "GraphConv": Case(lambda: nn.GraphConv(W, W), _weighted),
    "GatedGraphConv": Case(lambda: nn.GatedGraphConv(W, num_layers=2), _weighted),
    "ResGatedGraphConv": Case(lambda: nn.ResGatedGraphConv(W, W, edge_dim=E), _attributed),
    "GATConv": Case(lambda: nn.GATConv(W, W, heads=2, edge_dim=E), _attributed),
    "GATv2Conv": Case(lambda: nn.GATv2Conv(W, W, heads=2, edge_dim=E), _attributed),
    "TransformerConv": Case(lambda: nn.TransformerConv(W, W, heads=2, edge_dim=E, beta=True), _attributed),
    "AGNNConv": Case(nn.AGNNConv),
    "TAGConv": Case(lambda: nn.TAGConv(W, W, K=3), _weighted),
    "GINConv": Case(lambda: nn.GINConv(_mlp(), train_eps=True)),
    "GINEConv": Case(lambda: nn.GINEConv(_mlp(), edge_dim=E), _attributed),
    "ARMAConv": Case(lambda: nn.ARMAConv(W, W, num_stacks=2, num_layers=2), _weighted),
    "SGConv": Case(lambda: nn.SGConv(W, W, K=2), _weighted),
    "SSGConv": Case(lambda: nn.SSGConv(W, W, alpha=0.2, K=3), _weighted),
    "APPNP": Case(lambda: nn.APPNP(K=4, alpha=0.1), _weighted),
    "MFConv": Case(lambda: nn.MFConv(W, W, max_degree=4)),
    "RGCNConv": Case(lambda: nn.RGCNConv(W, W, num_relations=E, num_bases=2), _typed),
    "FastRGCNConv": Case(lambda: nn.FastRGCNConv(W, W, num_relations=E), _typed),
    "RGATConv": Case(
        lambda: nn.RGATConv(W, W, num_relations=E, edge_dim=E),
        lambda layer, x, g: layer(x, g.edge_index, _kinds(g), g.edge_attr),
    ),
    "SignedConv": Case(
        lambda: nn.SignedConv(W, W, first_aggr=True),
        lambda layer, x, g: layer(x, g.edge_index[:, _kinds(g) == 0], g.edge_index[:, _kinds(g) != 0]),
    ),
    "DNAConv": Case(
        lambda: nn.DNAConv(W, heads=2), lambda layer, x, g: layer(torch.stack([x, x.tanh()], 1), g.edge_index)
    ),
    "PointNetConv": Case(
        lambda: nn.PointNetConv(_mlp(W + 3), _mlp()), lambda layer, x, g: layer(x, x[:, :3], g.edge_index)
    ),
    "GMMConv": Case(lambda: nn.GMMConv(W, W, dim=E, kernel_size=2), _attributed),
    "NNConv": Case(lambda: nn.NNConv(W, W, _mlp(E, W * W)), _attributed),
    "CGConv": Case(lambda: nn.CGConv(W, dim=E, batch_norm=True), _attributed),
    "EdgeConv": Case(lambda: nn.EdgeConv(_mlp(2 * W))),
    "PPFConv": Case(
        lambda: nn.PPFConv(_mlp(W + 4), _mlp()), lambda layer, x, g: layer(x, x[:, :3], x[:, 3:6], g.edge_index)
    ),
    "FeaStConv": Case(lambda: nn.FeaStConv(W, W, heads=2)),
    "PointTransformerConv": Case(
        lambda: nn.PointTransformerConv(W, W), lambda layer, x, g: layer(x, x[:, :3], g.edge_index)
    ),
    "LEConv": Case(lambda: nn.LEConv(W, W), _weighted),
    "PNAConv": Case(
        lambda: nn.PNAConv(W, W, ["mean", "max", "std"], ["identity", "amplification"], torch.arange(1, 9), edge_dim=E),
        _attributed,
    ),
    "ClusterGCNConv": Case(lambda: nn.ClusterGCNConv(W, W, diag_lambda=0.5)),
    "GENConv": Case(
        lambda: nn.GENConv(W, W, learn_t=True, msg_norm=True, learn_msg_scale=True, edge_dim=E), _attributed
    ),
    "GCN2Conv": Case(
        lambda: nn.GCN2Conv(W, alpha=0.1, theta=0.5, layer=1),
        lambda layer, x, g: layer(x, x.tanh(), g.edge_index, g.edge_weight),
    ),
    "WLConvContinuous": Case(nn.WLConvContinuous, _weighted),
    "FiLMConv": Case(lambda: nn.FiLMConv(W, W, num_relations=E), _typed),
    "FAConv": Case(lambda: nn.FAConv(W), lambda layer, x, g: layer(x, x.tanh(), g.edge_index)),
    "EGConv": Case(lambda: nn.EGConv(W, W, ["sum", "symnorm", "var"], num_heads=2)),
    "PDNConv": Case(
        lambda: nn.PDNConv(W, W, edge_dim=E, hidden_channels=4),
        lambda layer, x, g: layer(x, g.edge_index, g.edge_attr),
    ),
    "GeneralConv": Case(lambda: nn.GeneralConv(W, W, in_edge_channels=E, heads=2, attention=True), _attributed),
    "HEATConv": Case(
        lambda: nn.HEATConv(W, W, 2, E, 4, E, 4, heads=2),
        lambda layer, x, g: layer(x, g.edge_index, _kinds_of_nodes(x), _kinds(g), g.edge_attr),
    ),
    "LGConv": Case(nn.LGConv, _weighted),
    "PointGNNConv": Case(
        lambda: nn.PointGNNConv(_mlp(W, 3), _mlp(W + 3), _mlp()), lambda layer, x, g: layer(x, x[:, :3], g.edge_index)
    ),
    "DirGNNConv": Case(lambda: nn.DirGNNConv(nn.GCNConv(W, W))),
    "AntiSymmetricConv": Case(lambda: nn.AntiSymmetricConv(W, num_iters=2)),
    "MixHopConv": Case(lambda: nn.MixHopConv(W, W, powers=[0, 1, 2]), _weighted),
    "SplineConv": Case(lambda: nn.SplineConv(W, W, dim=E, kernel_size=[3, 4, 2]), _attributed),
}
#: The classes that the check by numbers refuses.
BY_NUMBERS: dict[str, Callable[[], Layer]] = {"GPSConv": lambda: nn.GPSConv(W, nn.SAGEConv(W, W), heads=2)}


def spline_basis(
    pseudo: torch.Tensor, kernel_size: torch.Tensor, is_open_spline: torch.Tensor, degree: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the linear B-splines that are not 0 at some coordinates, and their places in the kernel.

    What pyg-lib's function of this name returns, for `degree` 1: Fey et al. (CVPR 2018), section 3.1.

    Args:
        pseudo: Coordinates in [0, 1]. (num_edges, dim)
        kernel_size: Knots in each dimension. (dim,) int64
        is_open_spline: Whether the first and the last knot of a dimension are not one. (dim,) uint8
        degree: 1.

    Returns:
        (num_edges, 2 ** dim), and the same shape in int64.
    """
    if degree != 1:
        raise ValueError(f"degree={degree}: expected 1")
    place = pseudo * (kernel_size - is_open_spline)
    left = place.floor()
    basis, index = pseudo.new_ones(len(pseudo), 1), kernel_size.new_zeros(len(pseudo), 1)
    stride = 1
    for d, size in enumerate(kernel_size.tolist()):
        share = (place - left)[:, d : d + 1]
        ends = torch.stack([left[:, d], left[:, d] + 1], 1).long() % size
        basis = (torch.cat([1 - share, share], 1)[:, :, None] * basis[:, None]).flatten(1)
        index = (stride * ends[:, :, None] + index[:, None]).flatten(1)
        stride *= size
    return basis, index


def spline_weighting(
    x: torch.Tensor, weight: torch.Tensor, basis: torch.Tensor, weight_index: torch.Tensor
) -> torch.Tensor:
    """Return each row of *x* times the sum of its matrices, as pyg-lib's function of this name. (num_edges, out)"""
    return torch.einsum("es,ei,esio->eo", basis, x, weight[weight_index])
