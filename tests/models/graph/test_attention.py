"""The attention of operators on host arrays; what it computes is compared with PyG in test_own_layers.py."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401  (float32 is multiplied by FBGEMM where torch is imported)

from unilaunch_graph.operators.attention import (
    Attention,
    EdgeDropout,
    additive_scores,
    dynamic_scores,
    product_scores,
)
from unilaunch_graph.operators.edges import Edges
from unilaunch_graph.operators.row_blocks import make_pool

NODES = 2000
KINDS: dict[str, Any] = {
    "gat": lambda _: additive_scores(0.2), "gatv2": lambda _: dynamic_scores(0.2), "transformer": product_scores,
}  # fmt: skip


def _problem(kind: str, count: int, heads: int, channels: int, *, attributed: bool) -> tuple[Edges, Any, list[Any]]:
    """Return edges between any two nodes, scores, and their inputs: of nodes, of heads, and of edges."""
    draw, width = np.random.default_rng(1), heads * channels
    targets = np.bincount(draw.integers(0, NODES, count), minlength=NODES)
    indptr = np.concatenate(([0], np.cumsum(targets)))
    edges = Edges(indptr, draw.integers(0, NODES, count).astype(np.int32), NODES)
    rows, own = (NODES, width), (heads, channels)
    shapes = {"gat": [rows, own, own], "gatv2": [rows, rows, own], "transformer": [rows] * 3}[kind]
    if attributed:
        shapes += [(heads, count)] if kind == "gat" else [(count, 3), (width, 3)]
    return edges, KINDS[kind](heads), [draw.random(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_with_any_number_of_threads(kind: str) -> None:
    """Enough edges for several blocks; float32 by FBGEMM, which another sum would not equal."""
    edges, scores, inputs = _problem(kind, 120_000, 2, 8, attributed=True)
    assert len(edges.by_target) > 4
    dropout = EdgeDropout(np.arange(NODES), NODES, 9, 0.3, np.dtype(np.float32))
    found = []
    for threads in (1, 3, 3):
        attention = Attention(edges, scores, make_pool(threads), dropout)
        out = attention.forward(inputs)
        found.append([out, *attention.backward(inputs, out, np.cos(out))])
    for one, two, three in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_edges_times_heads(kind: str) -> None:
    edges, scores, arrays = _problem(kind, 400_000, 8, 16, attributed=False)
    assert edges.by_source
    attention = Attention(edges, scores)
    tracemalloc.start()
    out = attention.forward(arrays)
    attention.backward(arrays, out, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400_000 * 8 * 4, "scores of all edges and heads, float32"
