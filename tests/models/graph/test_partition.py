"""Parts of a graph: each node is owned once, what one part sends another receives, and products are the graph's."""

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphs_by_hand import Cut, cut_directed_graphs, cut_graphs, dense_adjacency, edges_of, make_graph, parts_of
from threaded_ranks import on_every_rank
from unilaunch.errors import InputError, PluginError
from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.data import edges
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.exchange.cover import smallest_cover
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.kernels.choice import choose_kernels
from unilaunch_graph.operators.halo_edges import DirectedEdges, HaloEdges, serving
from unilaunch_graph.partition import cut as cutting
from unilaunch_graph.partition import partitioners
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.partitioners import assign
from unilaunch_graph.partition.statistics import halo_size

CUTS = st.one_of(cut_graphs(), cut_directed_graphs())


@given(CUTS)
def test_the_parts_are_the_graph(cut: Cut) -> None:
    """Put together again: each node with its own rows, at its owner; each edge once, with its weight and features."""
    graph, owner, _ = cut
    parts, found = parts_of(*cut), []
    assert sorted(np.concatenate([part.owned for part in parts])) == list(range(graph.num_nodes))
    for part in parts:
        assert (owner[part.owned] == part.index).all()
        np.testing.assert_array_equal(np.asarray(part.features)[:, 0], part.owned)
        np.testing.assert_array_equal(part.strengths, graph.strengths[part.owned])
        assert (part.loops == 1).all()
        assert (part.is_directed, part.split_sizes[0]) == (graph.is_directed, (graph.split == TRAIN).sum())
        for kind, names in (("owned", part.owned), ("halo", part.halo)):
            indptr, indices, weights, arrays = (
                getattr(part, f"{kind}_{what}") for what in ("indptr", "indices", "weights", "edge_arrays")
            )
            assert all((np.diff(indices[begin:end]) >= 0).all() for begin, end in pairwise(indptr))
            weights = weights if len(weights) else None
            edges = edges_of(replace(graph, indptr=indptr, indices=indices, weights=weights, edge_arrays=arrays))
            found += [(names[source], part.owned[target], *more) for source, target, *more in edges]
    assert sorted(found) == sorted(edges_of(graph))


@given(CUTS)
def test_halo_is_the_remote_neighbours(cut: Cut) -> None:
    """Sources of in-edges, each once, grouped by owner, in the order in which it sends; `halo_size` counts the same."""
    graph, owner, num_parts = cut
    dense, parts = dense_adjacency(graph), parts_of(*cut)
    for part in parts:
        near = dense[part.owned].any(axis=0) & (owner != part.index)
        assert sorted(part.halo) == list(np.flatnonzero(near))
        np.testing.assert_array_equal(owner[part.halo], np.repeat(np.arange(num_parts), part.halo_counts))
        for receiver, rows in zip(parts, np.split(part.send_rows, np.cumsum(part.send_counts)[:-1]), strict=True):
            arriving = np.split(receiver.halo, np.cumsum(receiver.halo_counts)[:-1])[part.index]
            np.testing.assert_array_equal(part.owned[rows], arriving)
    assert halo_size(graph, owner, num_parts) == sum(part.num_halo for part in parts)


def _grid(side: int) -> Graph:
    at = np.arange(side * side).reshape(side, side)
    pairs = np.concatenate([np.stack([at[:, :-1], at[:, 1:]], 2), np.stack([at[:-1].T, at[1:].T], 2)])
    return make_graph(side * side, pairs.reshape(-1, 2).tolist())


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8])
def test_metis_parts_are_even_and_always_the_same(num_parts: int) -> None:
    graph = _grid(20)
    owner = assign(graph, num_parts, "nodes").owner
    np.testing.assert_array_equal(owner, assign(graph, num_parts, "nodes").owner)
    sizes = np.bincount(owner, minlength=num_parts)
    assert sizes.max() <= 1.1 * graph.num_nodes / num_parts
    assert halo_size(graph, owner, num_parts) <= 60 * (num_parts - 1)


def _communities(count: int) -> Graph:
    """Return communities of 50 nodes with hubs, joined at random."""
    draw = np.random.default_rng(0)
    nodes = np.arange(50 * count)
    near = [(nodes // 50 * 50 + (draw.random(len(nodes)) ** 3 * 50).astype(int), nodes) for _ in range(12)]
    sources, targets = np.concatenate([*map(np.array, near), np.array((draw.permutation(nodes), nodes))], axis=1)
    return make_graph(len(nodes), list(zip(sources.tolist(), targets.tolist(), strict=True)))


def test_mtkahypar_cuts_alike_each_time() -> None:
    graph = _communities(16)
    alone = partitioners.metis(graph.indptr, graph.indices, 4, graph.degrees, objtype=1, ncuts=5)
    other, again = (assign(graph, 4, "edges", "mtkahypar") for _ in range(2))
    np.testing.assert_array_equal(other.owner, again.owner)
    assert np.bincount(other.owner, graph.degrees).max() <= 1.04 * graph.degrees.sum() / 4
    assert other.halo == halo_size(graph, other.owner, 4) <= 0.95 * halo_size(graph, alone, 4)
    assert other.partitioner == f"mtkahypar {version('mtkahypar')}"


def test_other_partitioners_are_asked_for_and_have_a_bound_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metis cuts else: others are slow on some graphs, minutes for a random one of a million edges."""
    assert assign(_grid(4), 2, "edges").partitioner == f"pymetis {version('pymetis')}"
    with pytest.raises(PluginError, match="no partitioner 'scotch'; installed: metis, mtkahypar"):
        assign(_grid(4), 2, "edges", "scotch")
    monkeypatch.setattr(partitioners, "PATIENCE", 0.01)
    with pytest.raises(PluginError, match=r"mtkahypar .*: no partition after 0\.01 s.*leave --partitioner out"):
        assign(_grid(4), 2, "nodes", "mtkahypar")


@given(st.data())
def test_no_part_is_empty_while_there_are_nodes(data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(2, 70))
    edges = [(data.draw(st.integers(0, node - 1)), node) for node in range(1, num_nodes) if data.draw(st.booleans())]
    num_parts = data.draw(st.integers(1, num_nodes + 2))
    balance = data.draw(st.sampled_from(["nodes", "edges", "train"]))
    owner = assign(make_graph(num_nodes, edges), num_parts, balance).owner
    assert len(np.unique(owner)) == min(num_parts, num_nodes)


def test_edges_or_training_nodes_can_be_balanced_instead() -> None:
    """In a dense corner of a graph nodes are fewer, edges are not more; half of the training nodes are in each part."""
    clique = [(a, b) for a in range(30) for b in range(a)]
    dense, grid = make_graph(300, clique + [(a, a + 1) for a in range(29, 299)]), _grid(16)

    def unevenness(graph: Graph, balance: str, weights: Any) -> float:
        sums = np.bincount(assign(graph, 2, balance).owner, weights=weights, minlength=2)
        return float(sums.max() / sums.mean())

    assert unevenness(dense, "edges", dense.degrees) < unevenness(dense, "nodes", dense.degrees)
    assert unevenness(grid, "train", grid.split == TRAIN) <= 1.2


RANK = """
from graphs_by_hand import make_graph
from unilaunch_graph.partition import partitioners
partitioners.assign(make_graph(9, [(node, node + 1) for node in range(8)]), 2, "nodes", "endless")
"""
ENDLESS = """
import os, time
from unilaunch_graph.partition.partitioners import Partitioner
class Endless(Partitioner):
    package = "numpy"
    def cut(self, graph, num_parts, weights):
        with open(os.environ["STARTED"], "w") as started:
            print("started", file=started, flush=True)
            time.sleep(3600)
"""


def test_a_partitioner_from_outside_ends_when_its_rank_is_killed(tmp_path: Path, monkeypatch: Any) -> None:
    info = tmp_path / "endless-1.dist-info"
    info.mkdir()
    (tmp_path / "endless.py").write_text(ENDLESS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: endless\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[unilaunch.partitioners]\nendless = endless:Endless\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]))
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    os.mkfifo(tmp_path / "started")
    with subprocess.Popen([sys.executable, "-c", RANK]) as rank, (tmp_path / "started").open() as started:
        assert started.readline() == "started\n"
        rank.kill()
        assert started.read() == "", "the end of the pipe: the partitioner has ended too"


def test_more_edges_than_32_bits_count_are_cut_and_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, counted, metis = _communities(16), [0], partitioners.metis

    def counting(indptr: Any, indices: Any, *more: Any, **options: Any) -> NDArray[np.int64]:
        counted.append(len(indices))
        return metis(indptr, indices, *more, **options)

    for limit in (len(graph.indices) - 1, 8 * graph.num_nodes):
        counted.clear()
        for module, name, value in (
            (partitioners, "metis", counting), (cutting, "metis", counting), (partitioners, "MOST", limit),
            (cutting, "MOST", limit), (edges, "WIDE", limit), (cutting, "WIDE", limit),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, value)
        owner = assign(graph, 2, "nodes").owner
        parts = list(split_parts(graph, order_nodes(graph, owner, 2)))
        assert 0 < max(counted) <= limit
        assert halo_size(graph, owner, 2) <= 0.8 * halo_size(graph, np.arange(graph.num_nodes) % 2, 2)
        assert sum(len(part.owned_indices) + len(part.halo_indices) for part in parts) == len(graph.indices)
        dense = dense_adjacency(graph)
        for part in parts:
            rows = np.repeat(np.arange(part.num_owned), np.diff(part.owned_indptr))
            assert dense[part.owned[rows], part.owned[part.owned_indices]].all()


def test_a_graph_with_more_nodes_than_metis_counts_needs_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (partitioners, cutting):
        monkeypatch.setattr(module, "MOST", 100)
    graph = _grid(40)
    with pytest.raises(InputError, match="METIS counts up to 100 edges, too few for 1,600 nodes: give --owner FILE"):
        assign(graph, 2, "nodes")
    ordered = order_nodes(graph, np.arange(1600) % 2, 2)
    np.testing.assert_array_equal(ordered.nodes, [*range(0, 1600, 2), *range(1, 1600, 2)])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=20))
def test_the_cover_is_the_smallest(ends: list[tuple[int, int]]) -> None:
    """Rows or partial sums: every edge has an end in it; no smaller set of rows and columns has."""
    pairs = sp.csr_array((np.ones(len(ends), np.int8), tuple(np.array(ends, int).reshape(-1, 2).T)), shape=(5, 6))
    pairs.sum_duplicates()
    rows, columns = smallest_cover(pairs)

    def covers(chosen: set[int]) -> bool:
        return all(row in chosen or column + 5 in chosen for row, column in ends)

    chosen = {*np.flatnonzero(rows).tolist(), *(np.flatnonzero(columns) + 5).tolist()}
    assert covers(chosen)
    assert not chosen or not any(covers(set(other)) for other in combinations(range(11), len(chosen) - 1))


@given(cut=CUTS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_products_are_the_halos_with_the_fewest_messages(cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    """W and its transpose, with weights, loops and parallel edges; repeats have the same bits. No memory is shared."""
    monkeypatch.setattr("unilaunch_graph.exchange.halo.share_buffers", lambda *_: None)
    graph, owner, num_parts = cut
    parts = parts_of(graph, owner, num_parts)
    x = np.random.default_rng(0).standard_normal((graph.num_nodes, 3))

    def work(rank: int, collectives: Collectives) -> tuple[Any, ...]:
        part, meter = parts[rank], Meter()
        kernels = choose_kernels(np.dtype(np.float64), part.num_edges, 1)
        halo = serving(HaloExchange(part, collectives, meter), kernels, None)
        edges = (DirectedEdges if graph.is_directed else HaloEdges)(part, halo, kernels, None)
        meter.read()
        once, again = (
            [step(x[part.owned], lambda rows, _: rows) for step in (edges.matmat, edges.rmatmat)] for _ in range(2)
        )
        np.testing.assert_array_equal(once, again)
        return (*once, meter.read()[1])

    results, dense = on_every_rank(num_parts, work), np.zeros((graph.num_nodes, graph.num_nodes))
    for source, target, weight, _ in edges_of(graph):
        dense[target, source] += weight
    for part, (product, back, _) in zip(parts, results, strict=True):
        np.testing.assert_allclose(product, (dense @ x)[part.owned], rtol=0, atol=1e-12)
        np.testing.assert_allclose(back, (dense.T @ x)[part.owned], rtol=0, atol=1e-12)
    least = sum(
        sum(map(np.sum, smallest_cover(sp.csr_array(dense[owner == target][:, owner == source]))))
        for target in range(num_parts) for source in range(num_parts) if source != target
    )  # fmt: skip
    assert sum(received for _, _, received in results) == 2 * 2 * 3 * 8 * least
