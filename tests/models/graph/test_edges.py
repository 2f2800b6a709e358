"""Edges by target: rows of sources give what lists of both ends give, and whether the graph is directed."""

from typing import Any

import numpy as np
import pytest

from unilaunch_graph.data.edges import Edges, edges_as_given, edges_of_rows

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
