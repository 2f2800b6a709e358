"""The layers of our own against PyG's, which run on the whole graph in one process: directed, with edge features."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.prune import custom_from_mask
from torch_geometric import nn as pyg

from models.graph.layers_of_pyg import EDGE_WIDTH, WIDTH, Case, attributed, check_exact, seeded
from models.graph.torch_parts import WHOLE, each_part, on_parts
from unilaunch_graph import torch as ug
from unilaunch_graph.torch import GATConv, GraphPart, SAGEConv

OUT = 5
#: Rank 2 of four owns no node.
FOUR = np.arange(40) % 3 + (np.arange(40) % 3 > 1)
GATS: list[dict[str, Any]] = [
    {},
    {"heads": 3, "concat": False, "residual": True, "bias": False},
    {"heads": 2, "add_self_loops": False, "negative_slope": 1.5},
    {"heads": 2, "edge_dim": EDGE_WIDTH},
    {"heads": 2, "edge_dim": EDGE_WIDTH, "fill_value": 0.5, "residual": True},
    {"heads": 2, "edge_dim": EDGE_WIDTH, "fill_value": "add"},
]
SAGES: list[dict[str, Any]] = [{}, {"aggr": "sum", "root_weight": False}, {"normalize": True, "project": True}]
pytestmark = pytest.mark.usefixtures("float64")


def _on_part(layer: Any, x: torch.Tensor, part: Any) -> Any:
    return layer(x, part)


def _check(kind: Any, out: int, options: dict[str, Any]) -> None:
    call = attributed if "edge_dim" in options else Case.call
    theirs = Case(lambda: getattr(pyg, kind.__name__)(WIDTH, out, **options), call)
    for owner in (np.zeros(40), FOUR):
        check_exact(theirs, owner, ours=Case(lambda: kind(WIDTH, out, **options), _on_part))


@pytest.mark.parametrize("options", GATS, ids=str)
def test_gat_is_pygs(options: dict[str, Any]) -> None:
    _check(GATConv, OUT, options)


@pytest.mark.parametrize("options", SAGES, ids=str)
@pytest.mark.parametrize(("out", "hosts"), [(OUT, 1), (OUT, 2), (2 * WIDTH, 2)])
def test_sage_is_pygs(options: dict[str, Any], out: int, hosts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By halo rows, and on several hosts by rows or partial sums; to rows that are narrower or wider."""
    if hosts == 2:
        monkeypatch.setattr("unilaunch_graph.exchange.halo.share_buffers", lambda *_: None)
    _check(SAGEConv, out, options)


def _pruned(kind: Any, name: str) -> Any:
    layer = kind(WIDTH, OUT)
    linear = getattr(layer, name)
    mask = torch.arange(linear.weight.numel()).view_as(linear.weight) % 3 > 0
    custom_from_mask(linear, "weight", mask)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        linear.weight_orig.mul_(2)
    return layer


@pytest.mark.parametrize(("kind", "name"), [(SAGEConv, "lin_l"), (GATConv, "lin")])
def test_weights_that_a_hook_makes_are_used(kind: Any, name: str) -> None:
    """As torch's pruning makes them, of another parameter that the optimizer changes."""
    theirs = Case(lambda: _pruned(getattr(pyg, kind.__name__), name))
    check_exact(theirs, ours=Case(lambda: _pruned(kind, name), _on_part))


@pytest.mark.parametrize(("dtype", "factor", "near"), [(torch.float32, 1, 2e-5), (torch.float64, 1e4, 1e-10)])
@pytest.mark.parametrize("kind", [GATConv, SAGEConv])
def test_float32_and_large_scores(kind: Any, dtype: torch.dtype, factor: float, near: float) -> None:
    """To the digits of the type; `exp` of large scores is infinite."""
    theirs, ours = (
        Case(
            lambda kind=kind: kind(WIDTH, OUT).to(dtype),  # type: ignore[misc]
            lambda layer, x, g, call=call: call(layer, (x * factor).to(dtype), g).double() / factor,  # type: ignore[misc]
        )
        for kind, call in ((getattr(pyg, kind.__name__), Case.call), (kind, _on_part))
    )
    check_exact(theirs, size=3, ours=ours, near=near)


@pytest.mark.parametrize("options", [{"heads": 2}, {"heads": 2, "edge_dim": EDGE_WIDTH}], ids=str)
def test_dropout_does_not_know_of_parts(options: dict[str, Any]) -> None:
    (layer,) = seeded(lambda: GATConv(WIDTH, OUT, dropout=0.4, **options), 1)

    def run(whole_or_owner: Any, size: int, **seed: int) -> Any:
        """Return rows, and the gradient of x."""

        def work(part: GraphPart) -> Any:
            x = part.x.requires_grad_()
            out = layer(x, part, **seed)
            (gradient,) = torch.autograd.grad(out.tanh().sum(), x)
            return ug.gather(out.detach(), part), ug.gather(gradient, part)

        return on_parts(WHOLE, size, work, whole_or_owner)[0]

    alone = run(None, 1, seed=5)
    torch.testing.assert_close(run(FOUR, 4, seed=5), alone, rtol=0, atol=1e-12)
    for other in (run(None, 1, seed=6), run(None, 1)):
        assert not torch.allclose(other[0], alone[0])
    layer.eval()
    assert not torch.allclose(run(None, 1, seed=5)[0], alone[0])


@each_part(1)
def test_gradient_with_dropout_is_the_slope(part: Any) -> None:
    layer = GATConv(WIDTH, 2, heads=2, dropout=0.5, edge_dim=EDGE_WIDTH)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def out(rows: torch.Tensor, attributes: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        named, own = dict(zip(names, given, strict=True)), replace(part, edge_attr=attributes)
        found: torch.Tensor = torch.func.functional_call(layer, named, (rows, own), {"seed": 1})
        return (found * torch.arange(4)).sum(dim=1)[5:15]

    inputs = [tensor.detach().requires_grad_() for tensor in (part.x, part.edge_attr, *weights)]
    assert torch.autograd.gradcheck(out, inputs, fast_mode=True)


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


@pytest.mark.parametrize("kind", [GATConv, SAGEConv])
@each_part(1)
def test_rows_that_do_not_fit_are_refused(part: GraphPart, kind: Any) -> None:
    layer, part = (
        kind(WIDTH, OUT, **({"edge_dim": EDGE_WIDTH} if kind is GATConv else {})),
        replace(part, edge_attr=None),
    )
    with pytest.raises(TypeError, match=r"torch\.bfloat16 on cpu: .* ug\.torch\.distribute"):
        layer(part.x.bfloat16(), part)
    with torch.autocast("cpu"), pytest.raises(TypeError, match=r"autocast\(\"cpu\"\) is on: .* enabled=False"):
        layer(part.x, part)
    with pytest.raises(ValueError, match=r"\(39, 8\), not \(40, width\)"):
        layer(part.x[1:], part)
    if kind is GATConv:
        with pytest.raises(ValueError, match=r"the shape None: expected \(140, 3\)"):
            layer(part.x, part)
