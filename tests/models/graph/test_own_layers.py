"""The layers of our own against PyG's, which run on the whole graph in one process, and their attention on arrays."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import nn as pyg

from models.graph.layers_of_pyg import EDGE_WIDTH, WIDTH, Case, attributed, check_exact, seeded
from models.graph.torch_parts import WHOLE, each_part, on_parts
from unilaunch_graph import torch as ug
from unilaunch_graph.operators.attention import Attention, EdgeDropout, additive_scores, dynamic_scores, product_scores
from unilaunch_graph.operators.edges import Edges
from unilaunch_graph.operators.row_blocks import make_pool
from unilaunch_graph.torch import GATConv, GraphPart, SAGEConv

OUT, NODES, PAIR = 5, 2000, (3, 4)
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


@pytest.mark.parametrize(("kind", "options", "out", "hosts"), [
    *((GATConv, options, OUT, 1) for options in GATS),
    *((SAGEConv, options, out, hosts) for options in SAGES for out, hosts in ((OUT, 1), (OUT, 2), (2 * WIDTH, 2))),
], ids=str)  # fmt: skip
def test_a_layer_is_pygs(kind: Any, options: Any, out: int, hosts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By halo rows, and SAGE on several hosts by rows or partial sums; to rows that are narrower or wider."""
    if hosts == 2:
        monkeypatch.setattr("unilaunch_graph.exchange.halo.share_buffers", lambda *_: None)
    call = attributed if "edge_dim" in options else Case.call
    theirs = Case(lambda: getattr(pyg, kind.__name__)(WIDTH, out, **options), call)
    for owner in (np.zeros(40), FOUR):
        check_exact(theirs, owner, ours=Case(lambda: kind(WIDTH, out, **options), _on_part))


@pytest.mark.parametrize(("dtype", "factor", "near"), [(torch.float32, 1, 2e-5), (torch.float64, 1e4, 1e-10)])
@pytest.mark.parametrize("kind", [GATConv, SAGEConv])
def test_float32_and_large_scores(kind: Any, dtype: torch.dtype, factor: float, near: float) -> None:
    """To the digits of the type; `exp` of large scores is infinite."""

    def scaled(kind: Any, call: Callable[..., torch.Tensor]) -> Case:
        return Case(
            lambda: kind(WIDTH, OUT).to(dtype),
            lambda layer, x, g: call(layer, (x * factor).to(dtype), g).double() / factor,
        )

    theirs, ours = scaled(getattr(pyg, kind.__name__), Case.call), scaled(kind, _on_part)
    check_exact(theirs, size=3, ours=ours, near=near)


@pytest.mark.parametrize("options", [{"heads": 2}, {"heads": 2, "edge_dim": EDGE_WIDTH}], ids=str)
def test_dropout_does_not_know_of_parts(options: dict[str, Any]) -> None:
    (layer,) = seeded(lambda: GATConv(WIDTH, OUT, dropout=0.4, **options), 1)

    def run(owner: Any, size: int, **seed: int) -> Any:
        """Return rows, and the gradient of x."""

        def work(part: GraphPart) -> Any:
            x = part.x.requires_grad_()
            out = layer(x, part, **seed)
            (gradient,) = torch.autograd.grad(out.tanh().sum(), x)
            return ug.gather(out.detach(), part), ug.gather(gradient, part)

        return on_parts(WHOLE, size, work, owner)[0]

    alone = run(None, 1, seed=5)
    torch.testing.assert_close(run(FOUR, 4, seed=5), alone, rtol=0, atol=1e-12)
    others = [run(None, 1, seed=6), run(None, 1)]
    layer.eval()
    assert not any(torch.allclose(other[0], alone[0]) for other in (*others, run(None, 1, seed=5)))


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


REFUSED: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda _: GATConv(PAIR, 5), ValueError, "in_channels=(3, 4)"),  # type: ignore[arg-type]
    (lambda _: GATConv(3, 5, dropout=1.0), ValueError, "dropout=1.0"),
    (lambda _: GATConv(3, 5, edge_dim=2, fill_value="max"), ValueError, "fill_value='max'"),
    (lambda _: SAGEConv(3, 5, aggr="max"), ValueError, "aggr='max'"),
    (lambda p: SAGEConv(8, 5)(p.x.bfloat16(), p), TypeError, "torch.bfloat16 on cpu: "),
    (lambda p: torch.autocast("cpu")(SAGEConv(8, 5))(p.x, p), TypeError, 'autocast("cpu") is on: '),
    (lambda p: SAGEConv(8, 5)(p.x[1:], p), ValueError, "(39, 8), not (40, width)"),
    (lambda p: GATConv(8, 5, edge_dim=3)(p.x, replace(p, edge_attr=None)), ValueError, "None: expected (140, 3)"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
@each_part(1)
def test_what_is_not_supported_is_refused(part: GraphPart, call: Any, error: type[Exception], words: str) -> None:
    """Arguments that PyG's layers have, and rows that do not fit."""
    with pytest.raises(error, match=re.escape(words)):
        call(part)


#: Scores, and the shapes of their inputs: of nodes, of two heads, and of edges.
KINDS: dict[str, tuple[Any, Any]] = {
    "gat": (additive_scores(0.2), [(NODES, 16), (2, 8), (2, 8), (2, 120_000)]),
    "gatv2": (dynamic_scores(0.2), [(NODES, 16), (NODES, 16), (2, 8), (120_000, 3), (16, 3)]),
    "transformer": (product_scores(2), [(NODES, 16)] * 3 + [(120_000, 3), (16, 3)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_attention_gives_the_same_bits_with_any_number_of_threads(kind: str) -> None:
    """Enough edges for several blocks; float32 by FBGEMM, which another sum would not equal."""
    draw, count = np.random.default_rng(1), 120_000
    indptr = np.concatenate(([0], np.cumsum(np.bincount(draw.integers(0, NODES, count), minlength=NODES))))
    edges = Edges(indptr, draw.integers(0, NODES, count).astype(np.int32), NODES)
    assert len(edges.by_target) > 4
    scores, shapes = KINDS[kind]
    inputs = [draw.random(shape, np.float32) for shape in shapes]
    dropout, found = EdgeDropout(np.arange(NODES), NODES, 9, 0.3, np.dtype(np.float32)), []
    for threads in (1, 3, 3):
        attention = Attention(edges, scores, make_pool(threads), dropout)
        out = attention.forward(inputs)
        found.append([out, *attention.backward(inputs, out, np.cos(out))])
    for one, two, three in zip(*found, strict=True):
        assert one.tobytes() == two.tobytes() == three.tobytes()
