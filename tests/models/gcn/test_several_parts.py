"""Several parts in one process: together they are the whole graph, and they move exactly their halo, or less."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphs_by_hand import Cut, cut_graphs, dense_a_hat, dense_adjacency, make_graph, parts_of
from threaded_ranks import on_every_rank
from unilaunch.interfaces.backend import Collectives
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.aggregation import ColumnSwitch, aggregation_over_columns, aggregation_over_halo
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem, training_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.network import Network
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.cut import slice_nodes
from unilaunch_graph.partition.part import Part

T = TypeVar("T")

F64 = np.dtype(np.float64)


def _on_every_rank(way: str, size: int, work: Callable[[int, Collectives], T]) -> list[T]:
    """Run *work* where rows come to their halo "shared", or in "messages": partial sums stand for some of them then."""
    with pytest.MonkeyPatch.context() as patch:
        if way == "messages":
            patch.setattr("unilaunch_graph.exchange.halo.share_buffers", lambda *_: None)
        return on_every_rank(size, work)


def _are_bytes_of_rows(received: int, rows: int, way: str) -> bool:
    return received <= rows if way == "messages" else received == rows


def _whole(parts: list[Part], rows: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the parts' rows in the order of global ids."""
    whole = np.empty((parts[0].num_nodes, rows[0].shape[1]), rows[0].dtype)
    for part, own in zip(parts, rows, strict=True):
        whole[part.owned] = own
    return whole


@pytest.mark.parametrize(("way", "threads"), [("shared", 3), ("messages", 1)])
@given(cut=cut_graphs(), width=st.integers(1, 4), dtype=st.sampled_from([np.float32, np.float64]))
@settings(max_examples=60)
def test_parts_together_are_a_hat(way: str, threads: int, cut: Cut, width: int, dtype: type) -> None:
    """The product is the dense one, its own transpose too; each part receives its halo once, and nothing else."""
    graph, owner, num_parts = cut
    parts = parts_of(graph, owner, num_parts)
    x, y = np.random.default_rng(0).standard_normal((2, graph.num_nodes, width)).astype(dtype)

    def work(rank: int, collectives: Collectives) -> tuple[Any, Any, int]:
        part, meter = parts[rank], Meter()
        halo = HaloExchange(part, collectives, meter)
        operator = aggregation_over_halo(part, halo, threads, "gcn", np.dtype(dtype))
        meter.read()
        product = operator.matmat(x[part.owned])
        received = meter.read()[1]
        return product, operator.rmatmat(np.asfortranarray(y[part.owned])), received

    results = _on_every_rank(way, num_parts, work)
    dense, limit = dense_a_hat(graph), 1e-12 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(_whole(parts, [product for product, _, _ in results]), dense @ x, rtol=0, atol=limit)
    np.testing.assert_allclose(_whole(parts, [back for _, back, _ in results]), dense.T @ y, rtol=0, atol=limit)
    for part, (_, _, received) in zip(parts, results, strict=True):
        assert _are_bytes_of_rows(received, part.num_halo * width * np.dtype(dtype).itemsize, way)


@given(
    cut=cut_graphs(), width=st.integers(1, 7), conv=st.sampled_from(["gcn", "sage"]),
    dtype=st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
@settings(max_examples=60)
def test_columns_together_are_a_hat(cut: Cut, width: int, conv: str, dtype: type) -> None:
    """Divided by columns, uneven ones too: the product of any graph, its transpose, and no byte more than needed."""
    graph, _, num_parts = cut
    adjacency, slices = slice_nodes(graph, num_parts)
    parts = list(slices)
    x, y = np.random.default_rng(0).standard_normal((2, graph.num_nodes, width)).astype(dtype)

    def work(rank: int, collectives: Collectives) -> tuple[Any, Any, int]:
        part, meter = parts[rank], Meter()
        switch = ColumnSwitch(part, adjacency, collectives, meter)
        operator = aggregation_over_columns(part, switch, 1, conv, np.dtype(dtype))
        product = operator.matmat(x[part.owned])
        return product, operator.rmatmat(y[part.owned]), meter.read()[1]

    results, limit = on_every_rank(num_parts, work), 1e-12 if dtype is np.float64 else 1e-5
    if conv == "gcn":
        dense = dense_a_hat(graph)
    else:
        near = dense_adjacency(graph)
        dense = near / np.maximum(near.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(_whole(parts, [product for product, _, _ in results]), dense @ x, rtol=0, atol=limit)
    np.testing.assert_allclose(_whole(parts, [back for _, back, _ in results]), dense.T @ y, rtol=0, atol=limit)
    stays = sum(
        part.num_owned * ((part.index + 1) * width // num_parts - part.index * width // num_parts) for part in parts
    )
    assert sum(count for _, _, count in results) == 4 * x.itemsize * (graph.num_nodes * width - stays)


def _problem_graph(*, sparse: bool, num_features: int = 11) -> Graph:
    ends = np.random.default_rng(3).integers(0, 40, (90, 2))
    plain = make_graph(40, ends.tolist())
    draw = np.random.default_rng(4)
    x = (draw.random((40, num_features)) * (draw.random((40, num_features)) < 0.3)).astype(np.float32)
    features = sp.csr_array(x) if sparse else x
    return Graph(plain.indptr, plain.indices, features, np.arange(40) % 3, plain.split, 3)


@pytest.mark.parametrize("way", ["shared", "messages"])
def test_sparse_features_are_aggregated_once_in_blocks_of_columns(way: str) -> None:
    """Also when their columns fill no whole number of blocks; the ranks exchange block by block."""
    graph = _problem_graph(sparse=True, num_features=600)
    parts = parts_of(graph, np.arange(40) % 3, 3)
    spec = GcnSpec(dropout=0)
    config = NetworkConfig(plan_layers(spec, 600, 3), 0, 0, F64)

    def work(rank: int, collectives: Collectives) -> tuple[sp.csr_array, int]:
        meter = Meter()
        features = host_problem(collectives, 1, config, parts[rank], meter).first_layer.aggregated
        assert isinstance(features, sp.csr_array)
        return features, meter.read()[1]

    results = _on_every_rank(way, 3, work)
    assert isinstance(graph.features, sp.csr_array)
    expected = dense_a_hat(graph) @ graph.features.toarray()
    whole = _whole(parts, [features.toarray() for features, _ in results])
    np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-12)
    for part, (_, received) in zip(parts, results, strict=True):
        assert _are_bytes_of_rows(received, part.num_halo * 600 * 8, way)


OWNERS = {
    "one": np.zeros(40, np.int64),
    "two": np.arange(40) // 20,
    "three, mixed": np.arange(40) * 7 % 3,
    "four, one of them empty": np.arange(40) % 2 * 3,
}


@pytest.mark.parametrize("way", ["shared", "messages", "device"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "options",
    [
        {"hidden": 4},
        {"hidden": 4, "dropout": 0},
        {"hidden": 20, "layers": 3},
        {"conv": "sage", "bias": True, "layer_norm": True, "residual": True, "hidden": 5, "layers": 4},
    ],
    ids=["product first", "aggregated once", "aggregation first", "everything"],
)
def test_gradients_do_not_depend_on_the_parts(options: dict[str, Any], sparse: bool, way: str) -> None:  # noqa: FBT001
    """Summed over any parts: loss, gradients and counts to 1e-12, dropout included; bytes as the layers plan them.

    On the host in either way, and on a device, which sends rows in messages of its own.
    """
    graph = _problem_graph(sparse=sparse)
    spec = GcnSpec(**options)
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
            gradient = mine.gradient(3)
            whole = parts[rank].num_halo * 8 * sum(layer.exchanges * layer.width for layer in config.layers)
            received = meter.read()[1]
            assert received == whole if way == "device" else received <= whole
            counts = mine.evaluate()
            collectives.all_reduce(gradient)
            collectives.all_reduce(counts)
            return np.asarray(mine.local(gradient)), np.asarray(mine.local(counts))

        results = _on_every_rank(way, len(parts), work)
        for gradient, counts in results[1:]:
            np.testing.assert_array_equal(gradient, results[0][0])
            np.testing.assert_array_equal(counts, results[0][1])
        return results[0]

    gradient, counts = train(OWNERS["one"])
    assert np.abs(gradient).max() > 1e-3
    for owner in OWNERS.values():
        other, others = train(owner)
        np.testing.assert_allclose(other, gradient, rtol=0, atol=1e-12)
        np.testing.assert_allclose(others, counts, rtol=1e-6)


def test_threads_do_not_change_a_bit() -> None:
    """Rows are shared out, sums are not."""
    ends = np.random.default_rng(3).integers(0, 9000, (60000, 2))
    (part,) = parts_of(make_graph(9000, ends.tolist()))
    rows = np.random.default_rng(0).standard_normal((9000, 17)).astype(np.float32)
    one, three = (
        aggregation_over_halo(part, HaloExchange(part, Alone(), Meter()), threads, "gcn", np.dtype(np.float32)).matmat(
            rows
        )
        for threads in (1, 3)
    )
    np.testing.assert_array_equal(one, three)
