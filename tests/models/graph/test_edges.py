"""Edges by target: lists and rows give the same, made undirected or not; rows of features are normalised."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphs_by_hand import make_directed_graph
from unilaunch.errors import InputError
from unilaunch_graph.data.edges import Edges, edges_as_given, edges_of_rows, undirected
from unilaunch_graph.data.graph import normalise_rows

PAIRS = np.array([[0, 1], [1, 0], [0, 2], [2, 0], [1, 3], [3, 1]])
ONE_WAY = PAIRS[:-1]
#: Some edges in the order of their sources, and with the targets of a source descending.
ASCENDING, DESCENDING = (np.lexsort((sign * PAIRS[:, 1], PAIRS[:, 0])) for sign in (1, -1))


def _of_rows(ends: Any, **values: Any) -> Edges:
    indptr = np.searchsorted(ends[:, 0], np.arange(5))
    return edges_of_rows(indptr, ends[:, 1].astype(np.int32), **values)


@pytest.mark.parametrize("order", [ASCENDING, DESCENDING], ids=["ascending", "descending"])
@pytest.mark.parametrize("values", ["", "equal weights", "other weights", "features"])
@pytest.mark.parametrize("chosen", [PAIRS, ONE_WAY], ids=["both ways", "one edge one way"])
def test_rows_of_sources_are_as_lists_of_ends(chosen: Any, values: str, order: Any) -> None:
    """Directed is what lacks a reverse edge, or whose two directions have other weights."""
    ends = PAIRS[order]
    ends = ends[(ends[:, None] == chosen).all(2).any(1)]
    weights = {"equal weights": ends.sum(1), "other weights": ends @ [2, 3] + 1}.get(values)
    given: dict[str, Any] = {} if weights is None else {"weights": weights.astype(np.float32)}
    if values == "features":
        given["edge_arrays"] = {"edge_attr": ends @ [[2], [3]]}

    found: Any = _of_rows(ends, **given)
    expected: Any = edges_as_given(ends[:, 0], ends[:, 1], 4, **given)

    assert found.is_directed == (len(chosen) < len(PAIRS) or values == "other weights")
    for name in ("indptr", "indices", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert found.edge_arrays.keys() == expected.edge_arrays.keys()
    for side in (found, expected):  # each edge brings its own arrays along
        given_ends = ends[side.edge_arrays["edge_ids"]]
        np.testing.assert_array_equal(given_ends[:, 0], side.indices)
        np.testing.assert_array_equal(given_ends[:, 1], np.repeat(np.arange(4), np.diff(side.indptr)))
        if values == "features":
            assert side.edge_arrays["edge_attr"].dtype == np.int64
            np.testing.assert_array_equal(side.edge_arrays["edge_attr"], given_ends @ [[2], [3]])


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


@pytest.mark.parametrize(
    ("ends", "words"), [([[0, 3], [1, 0]], "edge 1: source 3"), ([[0, 1], [-1, 0]], "edge 0: target -1")]
)
def test_ends_that_are_no_nodes_are_refused(ends: list[list[int]], words: str) -> None:
    """The message names the edge, the end and the nodes that there are."""
    with pytest.raises(InputError, match=f"{words} is no node; nodes are 0 to 2"):
        undirected(*np.array(ends), 3)


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
