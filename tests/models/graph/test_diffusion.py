"""Graph diffusion, against the dense formula."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphs_by_hand import Cut, cut_graphs, dense_a_hat, make_graph
from unilaunch_graph.data import diffusion
from unilaunch_graph.data.diffusion import Diffusion, diffuse
from unilaunch_graph.data.graph import Graph

_DRAW = np.random.default_rng(0).integers(0, 60, (150, 2)).tolist()
#: Two communities and an edge between them.
COMMUNITIES = make_graph(120, [*map(tuple, _DRAW), *((a + 60, b + 60) for a, b in _DRAW), (3, 70)])


def _dense(graph: Graph, alpha: float) -> NDArray[np.float64]:
    """Return the limit of the series: alpha (I - (1 - alpha) A_hat)^-1."""
    return alpha * np.linalg.inv(np.eye(graph.num_nodes) - (1 - alpha) * dense_a_hat(graph))


def _weights(graph: Graph, how: Diffusion) -> NDArray[np.float64]:
    diffused = diffuse(graph, how)
    assert diffused.loops is not None
    return np.asarray(diffused.adjacency().toarray() + np.diag(diffused.loops), np.float64)


@given(cut_graphs(), st.floats(0.1, 0.9))
@settings(max_examples=40)
def test_all_edges_of_a_small_graph_are_the_series(cut: Cut, alpha: float) -> None:
    found = _weights(cut[0], Diffusion(alpha, cut[0].num_nodes, None))
    np.testing.assert_allclose(found, _dense(cut[0], alpha), rtol=1e-6, atol=1e-9)


def test_the_strongest_edges_are_kept() -> None:
    """As many of each row, or those above a threshold; the mean with the transpose is symmetric."""
    dense = _dense(COMMUNITIES, 0.2)
    kept = np.where(dense >= np.sort(dense, axis=1)[:, [-5]], dense, 0)
    np.testing.assert_allclose(_weights(COMMUNITIES, Diffusion(0.2, 5, None)), (kept + kept.T) / 2, atol=1e-7)
    above = np.where(dense >= 0.01, dense, 0)
    np.testing.assert_allclose(_weights(COMMUNITIES, Diffusion(0.2, 5, 0.01)), above, atol=1e-7)


def test_a_large_graph_is_diffused_by_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never too much, and short by the residual at most."""
    monkeypatch.setattr(diffusion, "EXACT", 10)
    monkeypatch.setattr(diffusion, "_BATCH", 50)
    short = _dense(COMMUNITIES, 0.2) - _weights(COMMUNITIES, Diffusion(0.2, 120, None))
    root = (COMMUNITIES.degrees + 1) ** 0.5
    assert (short >= -1e-7).all()
    assert (short <= diffusion.RESIDUAL * root[:, None] * root * 1.01 + 1e-7).all()
