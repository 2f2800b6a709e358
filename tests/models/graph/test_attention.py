"""The attention of operators on host arrays; what it computes is compared with PyG in test_own_layers.py."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch  # noqa: F401  (float32 is multiplied by FBGEMM where torch is imported)

from unilaunch_graph.operators.attention import (
    Attention,
    EdgeDropout,
    Scores,
    additive_scores,
    dynamic_scores,
    product_scores,
)
from unilaunch_graph.operators.edges import Edges
from unilaunch_graph.operators.row_blocks import make_pool


def draw_edges(draw: np.random.Generator, nodes: int, count: int) -> Edges:
    """Return edges between any two nodes."""
    targets = np.bincount(draw.integers(0, nodes, count), minlength=nodes)
    return Edges(np.concatenate(([0], np.cumsum(targets))), draw.integers(0, nodes, count).astype(np.int32), nodes)


NODES, HEADS, CHANNELS = 3000, 2, 8
WIDTH = HEADS * CHANNELS
#: The scores, and the shapes of their inputs for a number of edges.
KINDS: dict[str, tuple[Scores, Callable[[int], list[tuple[int, int]]]]] = {
    "gat": (additive_scores(0.2), lambda edges: [(NODES, WIDTH), (HEADS, CHANNELS), (HEADS, CHANNELS), (HEADS, edges)]),
    "gatv2": (
        dynamic_scores(0.2),
        lambda edges: [(NODES, WIDTH), (NODES, WIDTH), (HEADS, CHANNELS), (edges, 3), (WIDTH, 3)],
    ),
    "transformer": (product_scores(HEADS), lambda edges: [*[(NODES, WIDTH)] * 3, (edges, 3), (WIDTH, 3)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_with_any_number_of_threads(kind: str) -> None:
    """Enough edges for several blocks; float32 by FBGEMM, which another sum would not equal."""
    draw = np.random.default_rng(1)
    count = 120_000
    scores, shapes = KINDS[kind]
    edges = draw_edges(draw, NODES, count)
    inputs = [draw.random(shape, np.float32) for shape in shapes(edges.num_edges)]
    assert len(edges.by_target) > 4
    dropout = EdgeDropout(np.arange(NODES), NODES, 9, 0.3, np.dtype(np.float32))
    found = []
    for threads in (1, 3, 3):
        attention = Attention(edges, scores, make_pool(threads), dropout)
        out = attention.forward(inputs)
        found.append([out, *attention.backward(inputs, out, np.cos(out))])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_edges_times_heads(kind: str) -> None:
    draw = np.random.default_rng(2)
    nodes, count, heads, channels = 2000, 400_000, 8, 16
    width, shape = (nodes, heads * channels), (heads, channels)
    inputs = {"gat": [width, shape, shape], "gatv2": [width, width, shape], "transformer": [width] * 3}
    scores = product_scores(heads) if kind == "transformer" else KINDS[kind][0]
    edges, arrays = draw_edges(draw, nodes, count), [draw.random(one, np.float32) for one in inputs[kind]]
    assert edges.by_source
    attention = Attention(edges, scores)
    tracemalloc.start()
    out = attention.forward(arrays)
    attention.backward(arrays, out, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < count * heads * 4, "scores of all edges and heads, float32"
