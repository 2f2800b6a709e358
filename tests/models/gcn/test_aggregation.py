"""The operators that both frameworks share, against dense matrices."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from graphs_by_hand import dense_a_hat, make_graph
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.aggregation import Aggregation, aggregation_over_halo
from unilaunch_gcn.features import FirstLayer
from unilaunch_gcn.layers import Evaluation, Mode, NetworkConfig, TrainingEpoch, plan_layers
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.dropout import fill_mask, stream_keys
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import Exact
from unilaunch_graph.kernels.portable import PortableKernels
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

F64 = np.dtype(np.float64)


def _part(graph: Graph) -> Part:
    return next(split_parts(graph, order_nodes(graph, np.zeros(graph.num_nodes, np.int64), 1)))


def _aggregation(part: Part, threads: int = 1, dtype: np.dtype[Any] = F64) -> Aggregation:
    return aggregation_over_halo(
        part,
        HaloExchange(part, Alone(), Meter(), Exact()),
        threads,
        "gcn",
        dtype,
    )


def _random_graph(num_nodes: int, num_edges: int) -> Graph:
    ends = np.random.default_rng(3).integers(0, num_nodes, (num_edges, 2))
    return make_graph(num_nodes, [(int(a), int(b)) for a, b in ends])


@given(st.integers(1, 40), st.integers(0, 80), st.integers(1, 5))
def test_product_is_a_hats_and_its_own_transpose(num_nodes: int, num_edges: int, width: int) -> None:
    """<A x, y> = <x, A^T y>, and both are the dense product."""
    graph = _random_graph(num_nodes, num_edges)
    part = _part(graph)
    operator, dense = _aggregation(part), dense_a_hat(graph)[part.owned][:, part.owned]
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((2, num_nodes, width))
    np.testing.assert_allclose(operator.matmat(x), dense @ x, rtol=0, atol=1e-12)
    assert (operator.matmat(x) * y).sum() == pytest.approx((x * operator.rmatmat(y)).sum(), abs=1e-10)


def test_threads_do_not_change_a_bit() -> None:
    """Rows are shared out, sums are not."""
    part = _part(_random_graph(9000, 60000))
    rows = np.random.default_rng(0).standard_normal((9000, 17)).astype(np.float32)
    one, three = (_aggregation(part, threads, np.dtype(np.float32)).matmat(rows) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "options",
    [{"hidden": 4}, {"hidden": 4, "dropout": 0}, {"hidden": 40}],
    ids=["product first", "aggregated once", "aggregation first"],
)
def test_inputs_are_exact_in_every_order(options: dict[str, Any], sparse: bool) -> None:  # noqa: FBT001
    """What the first layer applies to W, with and without dropout, and its transpose."""
    graph = _random_graph(50, 120)
    x = np.random.default_rng(5).random((50, 9)).astype(np.float32) * (np.random.default_rng(6).random((50, 9)) < 0.4)
    features = sp.csr_array(x.astype(np.float32)) if sparse else x.astype(np.float32)
    part = _part(Graph(graph.indptr, graph.indices, features, graph.labels, graph.split, 2))
    spec = GcnSpec(**options)
    config = NetworkConfig(plan_layers(spec, 9, 2), spec.dropout, 11, F64)
    inputs = FirstLayer(config, part, _aggregation(part), PortableKernels(F64), PortableKernels(F64))
    aggregated = config.layers[0].order != "product first"
    a_hat = dense_a_hat(graph)[part.owned][:, part.owned] if aggregated else np.eye(50)
    draw = np.random.default_rng(0)
    weight, upstream = draw.standard_normal((9, 3)), draw.standard_normal((50, 3))
    modes: list[Mode] = [Evaluation(), TrainingEpoch(4)]
    for mode in modes:
        mask = np.ones((50, 9))
        if isinstance(mode, TrainingEpoch) and spec.dropout:
            fill_mask(mask, part.owned, stream_keys(11, mode.number, 0), spec.dropout)
        expected = a_hat @ (x[part.owned].astype(np.float32).astype(np.float64) * mask)
        operator, own = inputs.operators(mode)
        np.testing.assert_allclose(
            own.matmat(weight), (x[part.owned].astype(np.float64) * mask) @ weight, rtol=0, atol=1e-12
        )
        np.testing.assert_allclose(operator.matmat(weight), expected @ weight, rtol=0, atol=1e-12)
        np.testing.assert_allclose(operator.rmatmat(upstream), expected.T @ upstream, rtol=0, atol=1e-12)
