"""The layers of our own against PyG's, which run on the whole graph in one process: directed, with edge features."""

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.prune import custom_from_mask
from torch_geometric import nn as pyg

from models.graph.torch_parts import Whole, each_part, make_whole, on_parts
from unilaunch_graph.torch import GATConv, GraphPart, SAGEConv

NODES, WIDTH, OUT, EDGE_WIDTH = 60, 6, 5, 3
WHOLE = make_whole(NODES, 400, WIDTH)
#: The rank of each node, by the number of ranks; rank 2 of 4 owns no node.
OWNERS = {1: [0] * NODES, 2: [int(n % 7 > 2) for n in range(NODES)], 4: [(0, 1, 3)[n % 3] for n in range(NODES)]}

GATS: list[dict[str, Any]] = [
    {},
    {"heads": 3, "concat": False, "residual": True, "bias": False},
    {"heads": 2, "add_self_loops": False, "negative_slope": 1.5},
    {"heads": 2, "edge_dim": EDGE_WIDTH},
    {"heads": 2, "edge_dim": EDGE_WIDTH, "fill_value": 0.5, "residual": True},
    {"heads": 2, "edge_dim": EDGE_WIDTH, "fill_value": "add"},
]
SAGES: list[dict[str, Any]] = [
    {},
    {"aggr": "sum", "root_weight": False},
    {"normalize": True, "project": True},
]

#: out, the gradient of x, and the gradients of the weights.
Result = tuple[Any, Any, list[Any]]


def run_parts(layer: torch.nn.Module, whole: Whole, ranks: int, **seed: int) -> Result:
    """Return what the ranks together compute under an odd loss over all nodes."""

    def work(part: GraphPart) -> tuple[Any, Any, Any, Any]:
        mine = copy.deepcopy(layer)
        rows = part.x.to(whole.x.dtype).requires_grad_()
        out = mine(rows, part, **seed)
        torch.autograd.backward(loss_of(out, part.owned))
        return part.owned, out.detach(), rows.grad, [weight.grad for weight in mine.parameters()]

    owned, outs, gradients, weights = zip(*on_parts(whole, ranks, work, OWNERS[ranks]), strict=True)
    order = torch.argsort(torch.cat(owned))
    return torch.cat(outs)[order], torch.cat(gradients)[order], [sum(shares) for shares in zip(*weights, strict=True)]


def run_whole(layer: torch.nn.Module, x: torch.Tensor, *edges: torch.Tensor) -> Result:
    """Return the same of PyG's layer."""
    x = x.clone().requires_grad_()
    out = layer(x, *edges)
    torch.autograd.backward(loss_of(out, torch.arange(len(out))))
    return out.detach(), x.grad, [weight.grad for weight in layer.parameters()]


def loss_of(out: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Return a loss whose gradient is another one for each element."""
    columns = torch.arange(out.shape[1], dtype=out.dtype)
    return (out * torch.sin(nodes.to(out.dtype)[:, None] * 1.7 + columns)).sum() + (out**2).sum() / 9


def assert_equal(found: Result, expected: Result, tolerance: float) -> None:
    """Compare outs, gradients of x, and gradients of weights."""
    assert len(found[2]) == len(expected[2])
    for one, other in zip([*found[:2], *found[2]], [*expected[:2], *expected[2]], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * max(1.0, float(other.abs().max())))


def pair_of(ours: Callable[..., Any], theirs: Callable[..., Any], options: dict[str, Any], out: int = OUT) -> Any:
    """Return both layers, with the weights that one seed gives both of them."""
    layers = []
    for make in (ours, theirs):
        torch.manual_seed(3)
        layers.append(make(WIDTH, out, **options).double())
    states = [layer.state_dict() for layer in layers]
    assert set(states[0]) == set(states[1])
    for name, weight in states[0].items():
        assert torch.equal(weight, states[1][name]), name
    return layers


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("options", GATS, ids=str)
def test_gat_is_pygs(options: dict[str, Any], ranks: int) -> None:
    ours, theirs = pair_of(GATConv, pyg.GATConv, options)
    edges = WHOLE.edge_index, *([WHOLE.edge_attr] if "edge_dim" in options else [])
    assert_equal(run_parts(ours, WHOLE, ranks), run_whole(theirs, WHOLE.x, *edges), 1e-13)


@pytest.mark.parametrize("options", SAGES, ids=str)
@pytest.mark.parametrize("out", [OUT, 2 * WIDTH])
@pytest.mark.parametrize("hosts", ["one host", "several hosts"])
def test_sage_is_pygs(
    options: dict[str, Any], out: int, hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """By halo rows, and on several hosts by rows or partial sums."""
    if hosts == "several hosts":
        monkeypatch.setattr("unilaunch_graph.exchange.halo.share_buffers", lambda *_: None)
    ours, theirs = pair_of(SAGEConv, pyg.SAGEConv, options, out)
    assert_equal(run_parts(ours, WHOLE, 4), run_whole(theirs, WHOLE.x, WHOLE.edge_index), 1e-13)


@pytest.mark.parametrize(("kind", "name"), [(SAGEConv, "lin_l"), (GATConv, "lin")])
def test_weights_that_a_hook_makes_are_used(kind: Any, name: str) -> None:
    """As torch's pruning makes them, of another parameter that the optimizer changes."""
    ours, theirs = pair_of(kind, getattr(pyg, kind.__name__), {})
    with torch.no_grad():
        for layer in (ours, theirs):
            linear = getattr(layer, name)
            mask = torch.arange(linear.weight.numel()).view_as(linear.weight) % 3 > 0
            custom_from_mask(linear, "weight", mask)  # type: ignore[no-untyped-call]
            linear.weight_orig.mul_(2)
    assert_equal(run_parts(ours, WHOLE, 2), run_whole(theirs, WHOLE.x, WHOLE.edge_index), 1e-13)


@pytest.mark.parametrize(("dtype", "factor", "tolerance"), [(torch.float32, 1, 2e-6), (torch.float64, 1e4, 1e-11)])
@pytest.mark.parametrize("kind", [GATConv, SAGEConv])
def test_float32_and_large_scores(kind: Any, dtype: torch.dtype, factor: float, tolerance: float) -> None:
    """To the digits of the type; `exp` of large scores is infinite."""
    own, pygs = (layer.to(dtype) for layer in pair_of(kind, getattr(pyg, kind.__name__), {}))
    graph = replace(WHOLE.graph, features=WHOLE.graph.features * np.float32(factor))
    x = torch.from_numpy(graph.features).to(dtype)
    assert_equal(run_parts(own, replace(WHOLE, x=x, graph=graph), 2), run_whole(pygs, x, WHOLE.edge_index), tolerance)


@pytest.mark.parametrize("options", [{"heads": 2}, {"heads": 2, "edge_dim": EDGE_WIDTH}], ids=str)
def test_dropout_does_not_know_of_parts(options: dict[str, Any]) -> None:
    layer = GATConv(WIDTH, OUT, dropout=0.4, **options).double()
    alone = run_parts(layer, WHOLE, 1, seed=5)
    assert_equal(run_parts(layer, WHOLE, 4, seed=5), alone, 1e-13)
    assert not torch.allclose(run_parts(layer, WHOLE, 1, seed=6)[0], alone[0])
    assert not torch.allclose(run_parts(layer, WHOLE, 1)[0], alone[0])
    assert not torch.allclose(run_parts(layer.eval(), WHOLE, 1, seed=5)[0], alone[0])


def test_gradient_with_dropout_is_the_slope() -> None:
    layer = GATConv(WIDTH, 2, heads=2, dropout=0.5, edge_dim=EDGE_WIDTH).double()
    names, weights = zip(*layer.named_parameters(), strict=True)

    def work(part: GraphPart) -> bool:
        def out(rows: torch.Tensor, attributes: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
            named = dict(zip(names, given, strict=True))
            found: torch.Tensor = torch.func.functional_call(layer, named, (rows, part, attributes), {"seed": 1})
            return (found * torch.arange(4)).sum(dim=1)[5:15]

        assert part.edge_attr is not None
        inputs = (part.x, part.edge_attr, *weights)
        return torch.autograd.gradcheck(out, [tensor.detach().requires_grad_() for tensor in inputs], fast_mode=True)

    assert on_parts(WHOLE, 1, work) == [True]


PAIR: Any = (3, 4)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: GATConv(PAIR, 5), "in_channels=(3, 4)"),
        (lambda: GATConv(3, 5, dropout=1.0), "dropout=1.0"),
        (lambda: GATConv(3, 5, edge_dim=2, fill_value="max"), "fill_value='max'"),
        (lambda: SAGEConv(3, 5, aggr="max"), "aggr='max'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(make: Callable[[], Any], names: str) -> None:
    """Arguments that PyG's layers have."""
    with pytest.raises(ValueError, match=re.escape(names)):
        make()


@pytest.mark.parametrize("layer", [GATConv(WIDTH, OUT, edge_dim=EDGE_WIDTH), SAGEConv(WIDTH, OUT)], ids=repr)
@each_part(1, whole=WHOLE)
def test_rows_that_do_not_fit_are_refused(part: GraphPart, layer: torch.nn.Module) -> None:
    part = replace(part, edge_attr=None)
    with pytest.raises(TypeError, match=r"torch\.bfloat16 on cpu: .* ug\.torch\.distribute"):
        layer(part.x.bfloat16(), part)
    with torch.autocast("cpu"), pytest.raises(TypeError, match=r"autocast\(\"cpu\"\) is on: .* enabled=False"):
        layer(part.x.float(), part)
    with pytest.raises(ValueError, match=r"\(59, 6\), not \(60, width\)"):
        layer(part.x[1:].float(), part)
    if isinstance(layer, GATConv):
        with pytest.raises(ValueError, match=r"the shape None: expected \(400, 3\)"):
            layer(part.x.float(), part)
