"""Edges in both directions, strengths of nodes, and rows of features that are normalised."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphs_by_hand import make_directed_graph
from unilaunch_graph.data.edges import undirected
from unilaunch_graph.data.graph import normalise_rows

NUM_NODES = 7
INTEGERS = st.sampled_from([np.int32, np.int64, np.uint8, np.uint64])
edges = st.lists(st.tuples(st.integers(0, NUM_NODES - 1), st.integers(0, NUM_NODES - 1)), max_size=40)
matrices = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.integers(-3, 3))


@given(st.one_of(edges, edges.map(lambda pairs: pairs * 256)), INTEGERS)
def test_every_edge_is_there_in_both_directions_once(
    pairs: list[tuple[int, int]], dtype: type[np.integer[Any]]
) -> None:
    """The neighbours are those of a set of pairs, however often each is given; each node's ascend; no loop is left."""
    sources, targets = np.array(pairs, dtype).reshape(-1, 2).T
    indptr, indices = undirected(sources, targets, NUM_NODES)
    found = list(zip(np.repeat(np.arange(NUM_NODES), np.diff(indptr)).tolist(), indices.tolist(), strict=True))
    assert found == sorted({(a, b) for pair in pairs for a, b in (pair, pair[::-1]) if a != b})
    assert indptr.dtype == np.int64
    assert indices.dtype == np.int32


def test_small_weights_keep_their_digits_behind_large_ones() -> None:
    """A node's strength is the sum of its own weights; it has no error of the size of another node's."""
    graph = make_directed_graph(5, [(0, 1)] * 9 + [(1, 3), (2, 3)])
    graph = replace(graph, weights=np.array([1e9] * 9 + [2e-6, 3e-6], np.float32))
    np.testing.assert_allclose(graph.strengths, [0, 9e9, 0, 5e-6, 0], rtol=1e-7)
    empty = make_directed_graph(2, [])
    assert replace(empty, weights=np.zeros(0, np.float32)).strengths.tolist() == [0, 0]


@given(matrices)
def test_rows_are_divided_by_their_absolute_sums(features: Any) -> None:
    """Dense and CSR features give the same; a row's absolute sum is then 1, and an empty row stays empty."""
    dense: Any = normalise_rows(features)
    sparse: Any = normalise_rows(sp.csr_array(features))
    assert dense.dtype == sparse.dtype == np.float32
    np.testing.assert_array_equal(sparse.toarray(), dense)
    np.testing.assert_allclose(np.abs(dense).sum(axis=1), features.any(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(np.sign(dense), np.sign(features))
