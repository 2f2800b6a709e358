"""Rows or partial sums, whichever are fewer: the products of the halo exchange, with the fewest messages."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphs_by_hand import Cut, cut_directed_graphs, cut_graphs, edges_of, parts_of
from threaded_ranks import on_every_rank
from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.exchange.cover import smallest_cover
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.kernels.choice import choose_kernels
from unilaunch_graph.operators.halo_edges import DirectedEdges, HaloEdges, serving

F64 = np.dtype(np.float64)


@pytest.fixture(autouse=True)
def on_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks share no memory."""
    monkeypatch.setattr("unilaunch_graph.exchange.halo.share_buffers", lambda *_: None)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=20))
def test_the_cover_is_the_smallest(ends: list[tuple[int, int]]) -> None:
    """Every edge has an end in it; no smaller set of rows and columns has."""
    pairs = sp.csr_array((np.ones(len(ends), np.int8), tuple(np.array(ends, int).reshape(-1, 2).T)), shape=(5, 6))
    pairs.sum_duplicates()
    rows, columns = smallest_cover(pairs)

    def covers(chosen: set[int]) -> bool:
        return all(row in chosen or column + 5 in chosen for row, column in ends)

    chosen = {*np.flatnonzero(rows).tolist(), *(np.flatnonzero(columns) + 5).tolist()}
    assert covers(chosen)
    assert not chosen or not any(covers(set(other)) for other in combinations(range(11), len(chosen) - 1))


def _dense(graph: Graph) -> NDArray[Any]:
    dense = np.zeros((graph.num_nodes, graph.num_nodes))
    for source, target, weight, _ in edges_of(graph):
        dense[target, source] += weight
    return dense


@given(st.one_of(cut_graphs(), cut_directed_graphs()))
@settings(max_examples=40)
def test_products_are_the_halos_with_the_fewest_messages(cut: Cut) -> None:
    """W and its transpose, with weights, loops and parallel edges; repeats have the same bits."""
    graph, owner, num_parts = cut
    parts = parts_of(graph, owner, num_parts)
    x = np.random.default_rng(0).standard_normal((graph.num_nodes, 3))

    def work(rank: int, collectives: Collectives) -> tuple[Any, ...]:
        part, meter = parts[rank], Meter()
        kernels = choose_kernels(F64, part.num_edges, 1)
        halo = serving(HaloExchange(part, collectives, meter), kernels, None)
        edges = (DirectedEdges if graph.is_directed else HaloEdges)(part, halo, kernels, None)
        meter.read()
        once, again = (
            [step(x[part.owned], lambda rows, _: rows) for step in (edges.matmat, edges.rmatmat)] for _ in range(2)
        )
        np.testing.assert_array_equal(once, again)
        return (*once, meter.read()[1])

    results, dense = on_every_rank(num_parts, work), _dense(graph)
    for part, (product, back, _) in zip(parts, results, strict=True):
        np.testing.assert_allclose(product, (dense @ x)[part.owned], rtol=0, atol=1e-12)
        np.testing.assert_allclose(back, (dense.T @ x)[part.owned], rtol=0, atol=1e-12)
    least = sum(
        sum(map(np.sum, smallest_cover(sp.csr_array(dense[owner == target][:, owner == source]))))
        for target in range(num_parts) for source in range(num_parts) if source != target
    )  # fmt: skip
    assert sum(received for _, _, received in results) == 2 * 2 * 3 * 8 * least
