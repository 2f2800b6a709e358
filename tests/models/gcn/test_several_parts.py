"""Several parts in one process: together they are the whole graph, and they move the halo that loss reaches."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphs_by_hand import Cut, cut_graphs, dense_a_hat, dense_adjacency, make_graph, parts_of, random_graph
from threaded_ranks import on_every_rank
from unilaunch.interfaces.backend import Collectives
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.aggregation import ColumnSwitch, aggregation_over_columns, aggregation_over_halo
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem, training_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeTensors
from unilaunch_gcn.network import Network
from unilaunch_gcn.pruning import prune
from unilaunch_gcn.reach import count_pruned
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.tensors import Tensors
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.arrays import FloatType
from unilaunch_graph.data.graph import TRAIN, VAL
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.cut import slice_nodes
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.statistics import count
from unilaunch_graph.partition.store import Origin, Partition, read_part, write_nodes, write_parts

T = TypeVar("T")

F64 = np.dtype(np.float64)
Floats = st.sampled_from([np.float32, np.float64])
Convs = st.sampled_from(["gcn", "sage"])


def _on_every_rank(way: str, size: int, work: Callable[[int, Collectives], T]) -> list[T]:
    """Run *work* where rows come to their halo "shared", or in "messages": partial sums stand for some of them then."""
    with pytest.MonkeyPatch.context() as patch:
        if way == "messages":
            patch.setattr("unilaunch_graph.exchange.halo.share_buffers", lambda *_: None)
        return on_every_rank(size, work)


def _whole(parts: list[Part], rows: Sequence[Any]) -> Any:
    """Return the parts' rows in the order of global ids."""
    return np.concatenate(rows)[np.argsort(np.concatenate([part.owned for part in parts]))]


@pytest.mark.parametrize(("way", "threads"), [("shared", 3), ("messages", 1), ("columns", 1)])
@given(cut=cut_graphs(), width=st.integers(1, 7), conv=Convs, dtype=Floats)
@settings(max_examples=60)
def test_parts_together_are_a_hat(way: str, threads: int, cut: Cut, width: int, conv: str, dtype: type) -> None:
    """The product is the dense one, its transpose too; each part receives its halo, or columns, and nothing else."""
    graph, owner, num_parts = cut
    adjacency, slices = slice_nodes(graph, num_parts)
    parts = list(slices) if way == "columns" else parts_of(graph, owner, num_parts)
    kind: FloatType = np.dtype(dtype)
    x, y = np.random.default_rng(0).standard_normal((2, graph.num_nodes, width)).astype(dtype)

    def work(rank: int, collectives: Collectives) -> tuple[Any, Any, int]:
        part, meter, operator = parts[rank], Meter(), None
        if way == "columns":
            switch = ColumnSwitch(part, adjacency, collectives, meter)
            operator = aggregation_over_columns(part, switch, 1, conv, kind)
        else:
            operator = aggregation_over_halo(part, HaloExchange(part, collectives, meter), threads, conv, kind)
            meter.read()
        product, received = operator.matmat(x[part.owned]), meter.read()[1]
        return product, operator.rmatmat(np.asfortranarray(y[part.owned])), received

    products, backs, received = zip(*_on_every_rank(way, num_parts, work), strict=True)
    near, limit = dense_adjacency(graph), 1e-12 if dtype is np.float64 else 1e-5
    dense = dense_a_hat(graph) if conv == "gcn" else near / np.maximum(near.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(_whole(parts, products), dense @ x, rtol=0, atol=limit)
    np.testing.assert_allclose(_whole(parts, backs), dense.T @ y, rtol=0, atol=limit)
    if way == "columns":
        columns = np.diff([rank * width // num_parts for rank in range(num_parts + 1)])
        stays = sum(part.num_owned * columns[part.index] for part in parts)
        assert sum(received) == 2 * kind.itemsize * (graph.num_nodes * width - stays)
    for part, count_of_part in zip(parts, received, strict=True):
        rows = part.num_halo * width * kind.itemsize
        assert {"shared": count_of_part == rows, "messages": count_of_part <= rows}.get(way, True)


@pytest.mark.parametrize("way", ["shared", "messages"])
def test_sparse_features_are_aggregated_once_in_blocks_of_columns(way: str) -> None:
    """Also when their columns fill no whole number of blocks; the ranks exchange block by block."""
    graph = random_graph(40, 90, 600, sparse=True)
    parts = parts_of(graph, np.arange(40) % 3, 3)
    config = NetworkConfig(plan_layers(GcnSpec(dropout=0), 600, 3), 0, 0, F64)

    def work(rank: int, collectives: Collectives) -> NDArray[Any]:
        part, meter = parts[rank], Meter()
        features = host_problem(collectives, 1, config, part, meter).first_layer.aggregated
        received, rows = meter.read()[1], part.num_halo * 600 * 8
        assert received == rows if way == "shared" else received <= rows
        assert isinstance(features, sp.csr_array)
        return np.asarray(features.toarray())

    expected = dense_a_hat(graph) @ sp.csr_array(graph.features).toarray()
    np.testing.assert_allclose(_whole(parts, _on_every_rank(way, 3, work)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_are_aggregated_once(dtype: type, tmp_path: Path) -> None:
    """From a file, in its type or another; in their place in memory, if they are the network's and no row stays."""
    origin, graph = Origin("x", "x", "x", "x", "x"), random_graph(9, 12, 70)  # wider than a block of columns
    write_parts(tmp_path / "p", origin, parts_of(graph))
    write_nodes(tmp_path / "p", origin, graph, tmp_path / "nodes", print)
    mapped, (part,) = read_part(Partition(tmp_path / "p", "x"), 0, 1), parts_of(graph)
    expected, before = (dense_a_hat(graph) @ graph.features)[part.owned], part.features.copy()
    cases: Any = ((mapped, "gcn", False), (part, "gcn", False), (part, "sage", True), (part, "gcn", True))
    for given_part, conv, owns in cases:
        layers = plan_layers(GcnSpec(dropout=0, conv=conv), 70, 3)
        config = NetworkConfig(layers, 0.0, 0, np.dtype(dtype), conv, owns_features=owns)
        found: Any = host_problem(Alone(), 1, config, given_part, Meter()).first_layer.aggregated
        is_in_place = owns and conv == "gcn" and dtype == np.float32
        assert np.shares_memory(found, part.features) == is_in_place
        assert np.array_equal(part.features, before) != is_in_place
        assert found.dtype == dtype
        if conv == "gcn":
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


OWNERS = (np.zeros(40, np.int64), np.arange(40) // 20, np.arange(40) * 7 % 3, np.arange(40) % 2 * 3)  # one is empty
OPTIONS: dict[str, dict[str, Any]] = {
    "product first": {"hidden": 4},
    "aggregated once": {"hidden": 4, "dropout": 0},
    "aggregation first": {"hidden": 20, "layers": 3},
    "everything": {"conv": "sage", "bias": True, "layer_norm": True, "residual": True, "hidden": 5, "layers": 4},
}


@pytest.mark.parametrize("way", ["shared", "messages", "device"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_do_not_depend_on_the_parts(options: dict[str, Any], way: str, *, sparse: bool) -> None:
    """Summed over any parts: loss, gradients and counts to 1e-12, dropout included; bytes as the layers plan them."""
    graph, spec = random_graph(40, 90, 11, sparse=sparse), GcnSpec(**options)
    config = NetworkConfig(plan_layers(spec, 11, 3), spec.dropout, 2, F64, spec.conv)

    def network(part: Part, collectives: Collectives, meter: Meter) -> Network:
        if way == "device":
            return device_network(config, part, TorchDeviceTensors("cpu"), collectives, meter)
        return HostNetwork(training_problem(collectives, 1, config, part, meter), TorchTensors())

    def train(owner: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        parts = parts_of(graph, owner)

        def work(rank: int, collectives: Collectives) -> tuple[Any, Any]:
            meter = Meter()
            mine = network(parts[rank], collectives, meter)
            meter.read()
            gradient, received = mine.gradient(3), meter.read()[1]
            planned = parts[rank].num_halo * 8 * sum(layer.exchanges * layer.width for layer in config.layers)
            assert received == planned if way == "device" else received <= planned
            counts = mine.evaluate()
            collectives.all_reduce(gradient)
            collectives.all_reduce(counts)
            return np.asarray(mine.local(gradient)), np.asarray(mine.local(counts))

        results = _on_every_rank(way, len(parts), work)
        for result in results[1:]:
            np.testing.assert_array_equal(np.concatenate(result), np.concatenate(results[0]))
        return results[0]

    gradient, counts = train(OWNERS[0])
    assert np.abs(gradient).max() > 1e-3
    for owner in OWNERS:
        other, others = train(owner)
        np.testing.assert_allclose(other, gradient, rtol=0, atol=1e-12)
        np.testing.assert_allclose(others, counts, rtol=1e-6)


@given(cut=cut_graphs(), conv=Convs, trained=st.integers(1, 6))
@settings(max_examples=60)
def test_pruned_products_are_rows_of_the_whole_ones(cut: Cut, conv: str, trained: int) -> None:
    """Bit by bit, forward and backward; the rows left out have the gradient 0; `plan` counts what is received."""
    graph, owner, num_parts = cut
    graph = replace(graph, split=np.where(np.arange(graph.num_nodes) < trained, TRAIN, VAL).astype(np.uint8))
    parts = parts_of(graph, owner, num_parts)
    x = np.random.default_rng(0).standard_normal((graph.num_nodes, 3))

    def work(rank: int, collectives: Collectives) -> list[tuple[int, int]]:
        part, meter, received = parts[rank], Meter(), []
        full = aggregation_over_halo(part, HaloExchange(part, collectives, meter), 1, conv, F64)
        own = x[part.owned]
        for layer in prune(part, full, [2, 2]):
            gradient = np.zeros_like(own)
            gradient[layer.leaving] = own[layer.leaving]
            expected = full.matmat(own)[layer.leaving], full.rmatmat(gradient)
            meter.read()
            np.testing.assert_array_equal(layer.aggregate.matmat(own[layer.entering]), expected[0])
            forward = meter.read()[1]
            np.testing.assert_array_equal(layer.aggregate.rmatmat(own[layer.leaving]), expected[1][layer.entering])
            received.append((forward, meter.read()[1]))
            assert not np.delete(expected[1], layer.entering, axis=0).any()
            np.testing.assert_array_equal(layer.selection.matmat(own[layer.entering]), own[layer.leaving])
        return received

    exchanged = count_pruned(graph, owner, count(graph, owner, num_parts), 2).exchanged
    for rank, received in enumerate(on_every_rank(num_parts, work)):
        assert bool(received) == (0 < 2 * min(trained, graph.num_nodes) <= graph.num_nodes)
        for layer, planned in zip(received, exchanged, strict=False):
            assert layer == tuple(8 * 3 * traffic[:, rank].sum() for traffic in planned)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_pruned_gradient_is_the_whole_one(options: dict[str, Any]) -> None:
    """To 1e-12 with any parts, repeats have the same bits, and an evaluation has every row. The graph is a ring."""
    spec = GcnSpec(**{"layers": 3, **options})
    config = NetworkConfig(plan_layers(spec, 11, 2), spec.dropout, 2, F64, spec.conv)
    split = np.where(np.isin(np.arange(60), [2, 4, 6, 30]), TRAIN, VAL).astype(np.uint8)
    graph = replace(make_graph(60, [(node, (node + 1) % 60) for node in range(60)]), split=split)
    graph = replace(graph, features=np.random.default_rng(4).random((60, 11), np.float32))

    def work(part: Part, collectives: Collectives, tensors: Tensors) -> tuple[NDArray[Any], NDArray[Any]]:
        problem = training_problem(collectives, 1, config, part, Meter())
        assert len(problem.pruned) == spec.layers
        assert sum(len(layer.entering) for layer in problem.pruned) < spec.layers * part.num_owned
        pruned, whole = (HostNetwork(one, tensors) for one in (problem, replace(problem, pruned=())))
        found, expected = pruned.gradient(3), whole.gradient(3)
        np.testing.assert_array_equal(pruned.gradient(3), found)
        np.testing.assert_array_equal(pruned.logits(), whole.logits())
        for gradient in (found, expected):
            collectives.all_reduce(gradient)
        return found, expected

    for owner in (np.arange(60) // 20, np.arange(60) % 2):  # one rank has no reached row, one has no training node
        parts = parts_of(graph, owner)
        ranks = on_every_rank(len(parts), lambda rank, collectives: work(parts[rank], collectives, TorchTensors()))  # noqa: B023
        assert np.abs(ranks[0][1]).max() > 1e-3
        np.testing.assert_allclose(*ranks[0], rtol=0, atol=1e-12)
    for tensors in (TorchTensors(), MindSporeTensors()):
        np.testing.assert_allclose(*work(parts_of(graph)[0], Alone(), tensors), rtol=0, atol=1e-12)
