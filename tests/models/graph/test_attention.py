"""The attention of operators on host arrays; what it computes is compared with PyG in test_own_layers.py."""

import tracemalloc

import numpy as np
import torch  # noqa: F401  (float32 is multiplied by FBGEMM where torch is imported)

from unilaunch_graph.operators.attention import Attention, Inputs
from unilaunch_graph.operators.edge_dropout import EdgeDropout
from unilaunch_graph.operators.edges import Edges
from unilaunch_graph.operators.row_blocks import make_pool


def draw_edges(draw: np.random.Generator, nodes: int, count: int) -> Edges:
    """Return edges between any two nodes."""
    targets = np.bincount(draw.integers(0, nodes, count), minlength=nodes)
    return Edges(np.concatenate(([0], np.cumsum(targets))), draw.integers(0, nodes, count).astype(np.int32), nodes)


def draw_inputs(draw: np.random.Generator, nodes: int, heads: int, channels: int) -> Inputs:
    """Return float32 rows and weights."""
    shapes = (nodes, heads * channels), (heads, channels), (heads, channels)
    return Inputs(*(draw.random(shape, np.float32) for shape in shapes))


def test_same_bits_with_any_number_of_threads() -> None:
    """Enough edges for several blocks; float32 by FBGEMM, which another sum would not equal."""
    draw = np.random.default_rng(1)
    nodes, count = 3000, 120_000
    edges, inputs = draw_edges(draw, nodes, count), draw_inputs(draw, nodes, 2, 8)
    assert len(edges.by_target) > 4
    dropout = EdgeDropout(np.arange(nodes), nodes, 9, 0.3, np.dtype(np.float32))
    found = []
    for threads in (1, 3, 3):
        attention = Attention(edges, 0.2, make_pool(threads))
        attended = attention.forward(inputs, dropout)
        back = attention.backward(inputs, attended, np.cos(attended.rows), dropout)
        found.append([attended.rows, back.rows, back.att_src, back.att_dst])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_memory_does_not_grow_with_edges_times_heads() -> None:
    draw = np.random.default_rng(2)
    nodes, count, heads, channels = 2000, 400_000, 8, 16
    edges, inputs = draw_edges(draw, nodes, count), draw_inputs(draw, nodes, heads, channels)
    assert edges.by_source
    attention = Attention(edges, 0.2)
    tracemalloc.start()
    attended = attention.forward(inputs)
    attention.backward(inputs, attended, attended.rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < count * heads * 4, "scores of all edges and heads, float32"
