"""Graph diffusion: against the dense formula, and what it is for."""

from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphs_by_hand import cut_graphs, dense_adjacency, make_graph
from threaded_ranks import on_every_rank
from unilaunch.backend import Collectives
from unilaunch.rank.alone import Alone
from unilaunch_gcn import diffusion
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.datasets import open_dataset
from unilaunch_gcn.diffusion import Diffusion, diffuse
from unilaunch_gcn.graph import TEST, TRAIN, VAL, Graph
from unilaunch_gcn.halo import HaloExchange
from unilaunch_gcn.inputs import Inputs
from unilaunch_gcn.layers import count_decayed, plan_layers
from unilaunch_gcn.meter import Meter
from unilaunch_gcn.network import Problem
from unilaunch_gcn.optimizer import Adam
from unilaunch_gcn.partition import order_nodes, split_parts
from unilaunch_gcn.setting import Setting
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_network import TorchNetwork
from unilaunch_gcn.wire import Exact

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


def test_weighted_parts_are_the_weighted_graph() -> None:
    """Weights and loops go with their nodes and edges into the parts."""
    graph = diffuse(_communities(), Diffusion(0.1, 6, None))
    parts = list(split_parts(graph, order_nodes(graph, np.arange(120) * 7 % 3, 3)))
    x = np.random.default_rng(1).standard_normal((120, 4))

    def work(rank: int, collectives: Collectives) -> NDArray[np.float64]:
        halo = HaloExchange(parts[rank], collectives, Meter(), Exact())
        operator = Aggregation(parts[rank], halo, 1, Setting([], 0.0, 0, F64))
        return np.asarray(operator.matmat(x[parts[rank].owned]))

    whole = np.empty_like(x)
    for part, own in zip(parts, on_every_rank(3, work), strict=True):
        whole[part.owned] = own
    weights = _weights(graph)
    scale = weights.sum(axis=1) ** -0.5
    np.testing.assert_allclose(whole, scale[:, None] * weights * scale @ x, rtol=0, atol=1e-6)


def _largest_component(graph: Graph) -> Graph:
    _, component = sp.csgraph.connected_components(graph.adjacency(), directed=False)
    kept = np.flatnonzero(component == np.bincount(component).argmax())
    inside = graph.adjacency()[kept][:, kept].tocsr()
    return Graph(
        inside.indptr.astype(np.int64), inside.indices, graph.features[kept], graph.labels[kept], graph.split[kept], 7
    )


def _draw_as_the_paper(labels: NDArray[np.int64], seed: int) -> NDArray[np.uint8]:
    """Draw 20 nodes of each class from the paper's 1,500; its others validate, and the 985 left are to test with."""
    development = np.random.RandomState(1684992425).choice(len(labels), 1500, replace=False)  # of the authors' code
    split = np.full(len(labels), TEST, np.uint8)
    split[development] = VAL
    draw = np.random.default_rng(seed)
    for label in np.unique(labels):
        split[draw.choice(development[labels[development] == label], 20, replace=False)] = TRAIN
    return split


def _test_accuracy(graph: Graph, seed: int, weight_decay: float) -> float:
    """Train 200 epochs on one part; return the share of right answers on the test nodes where validation's is best."""
    part = next(split_parts(graph, order_nodes(graph, np.zeros(graph.num_nodes, np.int64), 1)))
    layers = plan_layers(GcnSpec(hidden=64), graph.num_features, 7)
    setting = Setting(layers, 0.5, seed, np.dtype(np.float32))
    aggregate = Aggregation(part, HaloExchange(part, Alone(), Meter(), Exact()), 1, setting)
    network = TorchNetwork(Problem(setting, part, aggregate, Inputs(setting, part, aggregate)))
    adam = Adam(network.flat, network.flat * 0.0, 0.01, weight_decay, count_decayed(layers))
    right = []
    for epoch in range(200):
        adam.step(network.gradient(epoch)[1:])
        if epoch % 10 == 9:
            right.append(tuple(network.evaluate()[1:3]))
    return float(max(right, key=itemgetter(0))[1] / part.split_sizes[2])


def test_it_makes_cora_more_accurate(shared_datasets: Path) -> None:
    """The paper's set-up: largest component, 1,500 development nodes, 64 hidden, alpha 0.05, top 128, and its own L2.

    Reached over ten draws: 81.6 % without and 83.1 % with diffusion; the gain is 1.5 points, with a standard error of
    0.4. (The paper, over 100 draws: 81.7 % and 83.5 %. With other development nodes it was 0.6 and 0.8 points.)
    """
    graph = _largest_component(open_dataset("cora", shared_datasets, None, 0, normalize_features=False).load())
    diffused = diffuse(graph, Diffusion(0.05, 128, None))
    splits = [_draw_as_the_paper(graph.labels, seed) for seed in range(10)]
    plain, gdc = (
        np.array([_test_accuracy(replace(g, split=split), seed, decay) for seed, split in enumerate(splits)])
        for g, decay in ((graph, 0.059), (diffused, 0.096))
    )
    assert 0.805 < plain.mean() < 0.83
    assert np.mean(gdc - plain) > 0.01
