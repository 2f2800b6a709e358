"""Halo rows, edges, segments: on host arrays, for networks of users."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs_by_hand import Cut, cut_directed_graphs
from threaded_ranks import on_every_rank
from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.exchange.user_halo import RowHalo
from unilaunch_graph.operators.segments import SegmentSoftmax, SegmentSum
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import merge_in_edges


@settings(max_examples=30)
@given(cut_directed_graphs())
def test_halo_and_its_transpose(cut: Cut) -> None:
    """The rows are the right nodes', and <H x, y> == <x, H^T y> over all ranks."""
    graph, owner, num_parts = cut
    parts = list(split_parts(graph, order_nodes(graph, owner, num_parts)))
    rows = np.random.default_rng(0).normal(size=(graph.num_nodes, 2))

    def work(rank: int, collectives: Collectives) -> Any:
        part = parts[rank]
        halo = RowHalo(part, collectives)
        nodes = np.concatenate((part.owned, part.halo))
        whole = halo.matmat(rows[part.owned])
        np.testing.assert_array_equal(whole, rows[nodes])
        back = np.random.default_rng(rank).normal(size=whole.shape)
        return (whole * back).sum() - (rows[part.owned] * halo.rmatmat(back)).sum()

    assert abs(sum(on_every_rank(num_parts, work))) < 1e-12


@settings(max_examples=30)
@given(cut_directed_graphs())
def test_merged_edges_are_those_of_the_graph_in_one_order(cut: Cut) -> None:
    """Each node's in-edges, with weights and features, by the source's global id: on any parts."""
    graph, owner, num_parts = cut
    for part in split_parts(graph, order_nodes(graph, owner, num_parts)):
        edges = merge_in_edges(part)
        sources = np.concatenate((part.owned, part.halo))[edges.ends[0]]
        for row, node in enumerate(part.owned):
            span, given = slice(*edges.indptr[row : row + 2]), slice(*graph.indptr[node : node + 2])
            assert (edges.ends[1, span] == row).all()
            assert graph.weights is not None
            found = sorted(zip(sources[span], edges.weights[span], edges.arrays["edge_attr"][span, 0], strict=True))
            features = graph.edge_arrays["edge_attr"][given, 0]
            expected = zip(graph.indices[given], graph.weights[given], features, strict=True)
            assert found == sorted(expected)
            assert (np.diff(sources[span]) >= 0).all()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_segments(degrees: list[int]) -> None:
    """Sum and transpose are adjoint; the softmax of a node sums to 1, and its gradient is the difference quotient's."""
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    draw = np.random.default_rng(0)
    messages, rows = draw.normal(size=(indptr[-1], 2)), draw.normal(size=(len(degrees), 2))
    total, softmax = SegmentSum(indptr), SegmentSoftmax(indptr)
    np.testing.assert_allclose((total.matmat(messages) * rows).sum(), (messages * total.rmatmat(rows)).sum())
    shares = softmax.forward(messages)
    np.testing.assert_allclose(total.matmat(shares), np.minimum(degrees, 1)[:, None].repeat(2, 1))
    upstream, step = draw.normal(size=shares.shape), draw.normal(size=shares.shape) * 1e-6
    change = (softmax.forward(messages + step) - softmax.forward(messages - step)) / 2
    np.testing.assert_allclose((change * upstream).sum(), (softmax.backward(shares, upstream) * step).sum(), atol=1e-14)
