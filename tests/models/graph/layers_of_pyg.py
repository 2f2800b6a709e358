"""Every convolution of PyG: how it is made, what it is called with, and that parts give what one process gives."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch_geometric import nn
from torch_geometric.nn.conv import spline_conv
from typing_extensions import override

from models.graph.torch_parts import WHOLE, Whole, on_parts
from unilaunch_graph.torch import gather, sum_gradients
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart

WIDTH, EDGE_WIDTH = 8, 3
Layer = torch.nn.Module


@dataclass(frozen=True)
class Case:
    """One layer: what makes it, and what calls it with rows and a graph or a part; by default with rows and edges."""

    make: Callable[[], Layer]
    call: Callable[[Any, torch.Tensor, Any], torch.Tensor] = lambda layer, x, g: layer(x, g.edge_index)


class Net(torch.nn.Module):
    """A user's model: its forward is *function* of itself and what it is given, and it has *modules*."""

    part: Any = None

    def __init__(self, function: Callable[..., Any], **modules: Layer) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    @override
    def forward(self, *given: Any) -> Any:
        """Return what *function* returns."""
        return self.function(self, *given)


def seeded(make: Callable[[], Layer], count: int) -> list[Layer]:
    """Return layers with equal weights; ranks that are threads share torch's generator, so make them before."""
    layers = []
    for _ in range(count):
        torch.manual_seed(0)
        layers.append(make())
    return layers


def _run(case: Case, layer: Layer, graph: Any, learned: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
    """Return rows, and the gradients of x and of arrays of the edges under a loss that is odd in each column."""
    x, arrays = graph.x.clone().requires_grad_(), [getattr(graph, name).requires_grad_() for name in learned]
    out = case.call(layer, x, graph).flatten(1)
    torch.autograd.backward((out * torch.arange(1.0, out.shape[1] + 1).sqrt()).tanh().sum())
    first, *others = (torch.zeros_like(one) if one.grad is None else one.grad for one in (x, *arrays))
    return out.detach(), first, others


def check_exact(
    case: Case, owner: Any = None, *, size: int = 2, check: bool = True, learned: Sequence[str] = (),
    whole: Whole = WHOLE, ours: Case | None = None, near: float = 1e-10,
) -> None:  # fmt: skip
    """Compare parts with one process in float64: rows, all gradients, and buffers.

    *owner* names the parts, or there are *size*. *learned* names arrays of the edges that have a gradient too. *ours*
    is a layer that takes a part by itself. *check* is False where another test shows that the check lets it through.
    """
    size = size if owner is None else int(owner.max()) + 1
    (alone,), layers = seeded(case.make, 1), seeded((ours or case).make, size)
    assert dict(layers[0].named_parameters()).keys() == dict(alone.named_parameters()).keys()
    out, grad, of_edges = _run(case, alone, copy.deepcopy(whole), learned)
    expected = [p.grad for p in alone.parameters()], dict(alone.named_buffers())

    def work(part: GraphPart) -> Any:
        layer = layers[part.rank] if ours else distribute(layers[part.rank], part, check=check)
        own_out, own_grad, own_of_edges = _run(ours or case, layer, part, learned)
        for found, wanted in zip(own_of_edges, of_edges, strict=True):
            torch.testing.assert_close(found, wanted[part.edge_ids], rtol=0, atol=near)
        sum_gradients(layer, part)
        rows = gather(own_out, part), gather(own_grad, part)
        return rows, ([p.grad for p in layer.parameters()], dict(layer.named_buffers()))

    results = on_parts(whole, size, work, owner)
    torch.testing.assert_close(results[0][0], (out, grad), rtol=0, atol=near)
    for _, found in results:
        torch.testing.assert_close(found, expected, rtol=0, atol=near)


def weighted(layer: Any, x: torch.Tensor, g: Any) -> Any:
    """Call with the edges' weights."""
    return layer(x, g.edge_index, g.edge_weight)


def attributed(layer: Any, x: torch.Tensor, g: Any) -> Any:
    """Call with the edges' features."""
    return layer(x, g.edge_index, edge_attr=g.edge_attr)


def kinds(g: Any) -> Any:
    """Return one of three types for each edge."""
    return g.edge_attr.argmax(1)


def _mlp(width: int = WIDTH, out: int = WIDTH) -> Layer:
    return torch.nn.Sequential(torch.nn.Linear(width, out), torch.nn.ReLU(), torch.nn.Linear(out, out))


def _typed(layer: Any, x: torch.Tensor, g: Any) -> Any:
    return layer(x, g.edge_index, kinds(g))


def _placed(layer: Any, x: torch.Tensor, g: Any) -> Any:
    return layer(x, x[:, :3], g.edge_index)


#: Nodes of one type, and edges of one.
TYPES = (["paper"], [("paper", "cites", "paper")])


def _of_one_type(layer: Any, x: torch.Tensor, g: Any) -> Any:
    return layer({"paper": x}, {TYPES[1][0]: g.edge_index})["paper"]


W, E = WIDTH, EDGE_WIDTH
#: The classes that can be tried, by name.
CASES: dict[str, Case] = {
    "SimpleConv": Case(nn.SimpleConv, weighted),
    "GCNConv": Case(lambda: nn.GCNConv(W, W), weighted),
    "ChebConv": Case(lambda: nn.ChebConv(W, W, K=3), weighted),
    "SAGEConv": Case(lambda: nn.SAGEConv(W, W, project=True)),
    "GraphConv": Case(lambda: nn.GraphConv(W, W), weighted),
    "GatedGraphConv": Case(lambda: nn.GatedGraphConv(W, num_layers=2), weighted),
    "ResGatedGraphConv": Case(lambda: nn.ResGatedGraphConv(W, W, edge_dim=E), attributed),
    "GATConv": Case(lambda: nn.GATConv(W, W, heads=2, edge_dim=E), attributed),
    "GATv2Conv": Case(lambda: nn.GATv2Conv(W, W, heads=2, edge_dim=E), attributed),
    "TransformerConv": Case(lambda: nn.TransformerConv(W, W, heads=2, edge_dim=E, beta=True), attributed),
    "AGNNConv": Case(nn.AGNNConv),
    "TAGConv": Case(lambda: nn.TAGConv(W, W, K=3), weighted),
    "GINConv": Case(lambda: nn.GINConv(_mlp(), train_eps=True)),
    "GINEConv": Case(lambda: nn.GINEConv(_mlp(), edge_dim=E), attributed),
    "ARMAConv": Case(lambda: nn.ARMAConv(W, W, num_stacks=2, num_layers=2), weighted),
    "SGConv": Case(lambda: nn.SGConv(W, W, K=2), weighted),
    "SSGConv": Case(lambda: nn.SSGConv(W, W, alpha=0.2, K=3), weighted),
    "APPNP": Case(lambda: nn.APPNP(K=4, alpha=0.1), weighted),
    "MFConv": Case(lambda: nn.MFConv(W, W, max_degree=4)),
    "RGCNConv": Case(lambda: nn.RGCNConv(W, W, num_relations=E, num_bases=2), _typed),
    "FastRGCNConv": Case(lambda: nn.FastRGCNConv(W, W, num_relations=E), _typed),
    "RGATConv": Case(
        lambda: nn.RGATConv(W, W, E, edge_dim=E), lambda conv, x, g: conv(x, g.edge_index, kinds(g), g.edge_attr)),
    "SignedConv": Case(lambda: nn.SignedConv(W, W, first_aggr=True), lambda layer, x, g: layer(
        x, g.edge_index[:, kinds(g) == 0], g.edge_index[:, kinds(g) != 0])),
    "DNAConv": Case(lambda: nn.DNAConv(W, heads=2), lambda layer, x, g: layer(
        torch.stack([x, x.tanh()], 1), g.edge_index)),
    "PointNetConv": Case(lambda: nn.PointNetConv(_mlp(W + 3), _mlp()), _placed),
    "GMMConv": Case(lambda: nn.GMMConv(W, W, dim=E, kernel_size=2), attributed),
    "NNConv": Case(lambda: nn.NNConv(W, W, _mlp(E, W * W)), attributed),
    "CGConv": Case(lambda: nn.CGConv(W, dim=E, batch_norm=True), attributed),
    "EdgeConv": Case(lambda: nn.EdgeConv(_mlp(2 * W))),
    "PPFConv": Case(
        lambda: nn.PPFConv(_mlp(W + 4), _mlp()), lambda layer, x, g: layer(x, x[:, :3], x[:, 3:6], g.edge_index)),
    "FeaStConv": Case(lambda: nn.FeaStConv(W, W, heads=2)),
    "PointTransformerConv": Case(lambda: nn.PointTransformerConv(W, W), _placed),
    "LEConv": Case(lambda: nn.LEConv(W, W), weighted),
    "PNAConv": Case(lambda: nn.PNAConv(
        W, W, ["mean", "max", "std"], ["identity", "amplification"], torch.arange(1, 9), edge_dim=E), attributed),
    "ClusterGCNConv": Case(lambda: nn.ClusterGCNConv(W, W, diag_lambda=0.5)),
    "GENConv": Case(
        lambda: nn.GENConv(W, W, learn_t=True, msg_norm=True, learn_msg_scale=True, edge_dim=E), attributed),
    "GCN2Conv": Case(lambda: nn.GCN2Conv(W, alpha=0.1, theta=0.5, layer=1), lambda layer, x, g: layer(
        x, x.tanh(), g.edge_index, g.edge_weight)),
    "WLConvContinuous": Case(nn.WLConvContinuous, weighted),
    "FiLMConv": Case(lambda: nn.FiLMConv(W, W, num_relations=E), _typed),
    "FAConv": Case(lambda: nn.FAConv(W), lambda layer, x, g: layer(x, x.tanh(), g.edge_index)),
    "EGConv": Case(lambda: nn.EGConv(W, W, ["sum", "symnorm", "var"], num_heads=2)),
    "PDNConv": Case(lambda: nn.PDNConv(W, W, edge_dim=E, hidden_channels=4), attributed),
    "GeneralConv": Case(lambda: nn.GeneralConv(W, W, in_edge_channels=E, heads=2, attention=True), attributed),
    "HEATConv": Case(lambda: nn.HEATConv(W, W, 2, E, 4, E, 4, heads=2), lambda layer, x, g: layer(
        x, g.edge_index, (x[:, 0] > 0).long(), kinds(g), g.edge_attr)),
    "LGConv": Case(nn.LGConv, weighted),
    "PointGNNConv": Case(lambda: nn.PointGNNConv(_mlp(W, 3), _mlp(W + 3), _mlp()), _placed),
    "DirGNNConv": Case(lambda: nn.DirGNNConv(nn.GCNConv(W, W))),
    "AntiSymmetricConv": Case(lambda: nn.AntiSymmetricConv(W, num_iters=2)),
    "MixHopConv": Case(lambda: nn.MixHopConv(W, W, powers=[0, 1, 2]), weighted),
    "HANConv": Case(lambda: nn.HANConv(W, W, TYPES, heads=2), _of_one_type),
    "HGTConv": Case(lambda: nn.HGTConv(W, W, TYPES, heads=2), _of_one_type),
    "HeteroConv": Case(lambda: nn.HeteroConv({TYPES[1][0]: nn.SAGEConv(W, W)}), _of_one_type),
    "SplineConv": Case(lambda: nn.SplineConv(W, W, dim=E, kernel_size=[3, 4, 2]), attributed),
}  # fmt: skip
#: The classes that the check by numbers refuses.
BY_NUMBERS: dict[str, Case] = {
    "GPSConv": Case(lambda: nn.GPSConv(W, nn.SAGEConv(W, W), heads=2)),
    "WLConv": Case(nn.WLConv, lambda layer, x, g: layer((x[:, 0] > 0).long(), g.edge_index)),
}


def spline_basis(pseudo: torch.Tensor, kernel_size: torch.Tensor, is_open_spline: torch.Tensor, _: int) -> Any:
    """Return the linear B-splines that are not 0 at coordinates in [0, 1], and their places in the kernel.

    What pyg-lib's function of this name returns, for degree 1: Fey et al. (CVPR 2018), section 3.1.
    """
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


def spline_weighting(x: torch.Tensor, weight: torch.Tensor, basis: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return each row of *x* times the sum of its matrices, as pyg-lib's function of this name. (num_edges, out)"""
    return torch.einsum("es,ei,esio->eo", basis, x, weight[index])


if spline_conv.spline_basis is None:  # pyg-lib is not installed
    spline_conv.spline_basis, spline_conv.spline_weighting = spline_basis, spline_weighting
