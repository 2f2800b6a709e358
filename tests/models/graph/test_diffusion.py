"""Graph diffusion: against the dense formula, and what it is for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphs_by_hand import cut_graphs, dense_adjacency, make_graph
from unilaunch_graph.data import diffusion
from unilaunch_graph.data.diffusion import Diffusion, diffuse
from unilaunch_graph.data.graph import Graph

F64 = np.dtype(np.float64)


def _dense(graph: Graph, alpha: float) -> NDArray[np.float64]:
    """Return S by its series, until nothing is added."""
    adjacency = dense_adjacency(graph) + np.eye(graph.num_nodes)
    scale = adjacency.sum(axis=1) ** -0.5
    step, total = scale[:, None] * adjacency * scale, np.zeros_like(adjacency)
    term = alpha * np.eye(graph.num_nodes)
    while np.abs(term).max() > 1e-17:
        total += term
        term = (1 - alpha) * (term @ step)
    return total


def _weights(graph: Graph) -> NDArray[np.float64]:
    assert graph.loops is not None
    return np.asarray(graph.adjacency().toarray() + np.diag(graph.loops), np.float64)


@given(cut_graphs(), st.floats(0.1, 0.9))
@settings(max_examples=40)
def test_all_edges_of_a_small_graph_are_the_series(cut: tuple[Graph, NDArray[np.int64], int], alpha: float) -> None:
    graph, _, _ = cut
    diffused = diffuse(graph, Diffusion(alpha, graph.num_nodes, None))
    np.testing.assert_allclose(_weights(diffused), _dense(graph, alpha), rtol=1e-6, atol=1e-9)


def _communities() -> Graph:
    draw = np.random.default_rng(0)
    ends = [(int(a), int(b)) for a, b in draw.integers(0, 60, (150, 2))]
    return make_graph(120, [*ends, *((a + 60, b + 60) for a, b in ends), (3, 70)])


def test_the_strongest_edges_are_kept() -> None:
    """As many of each row, or those above a threshold; the mean with the transpose is symmetric."""
    graph = _communities()
    dense = _dense(graph, 0.2)
    kept = np.where(dense >= np.sort(dense, axis=1)[:, [-5]], dense, 0)
    np.testing.assert_allclose(_weights(diffuse(graph, Diffusion(0.2, 5, None))), (kept + kept.T) / 2, atol=1e-7)
    above = np.where(dense >= 0.01, dense, 0)
    np.testing.assert_allclose(_weights(diffuse(graph, Diffusion(0.2, 5, 0.01))), above, atol=1e-7)


def test_a_large_graph_is_diffused_by_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never too much, and short by the residual at most."""
    graph = _communities()
    monkeypatch.setattr(diffusion, "EXACT", 10)
    monkeypatch.setattr(diffusion, "_BATCH", 50)
    pushed, exact = _weights(diffuse(graph, Diffusion(0.2, 120, None))), _dense(graph, 0.2)
    root = (graph.degrees + 1) ** 0.5
    assert (pushed <= exact + 1e-7).all()
    assert (exact - pushed <= diffusion.RESIDUAL * root[:, None] * root * 1.01 + 1e-7).all()
