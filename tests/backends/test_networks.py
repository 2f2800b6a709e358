"""The device networks of both frameworks, on cpu tensors, beside the host networks: the same gradients and counts."""

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from typing_extensions import override

from graphs_by_hand import dense_a_hat, make_graph
from unilaunch.backend import Collectives, Exchange
from unilaunch.rank.alone import Alone
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.graph import Graph
from unilaunch_gcn.halo import HaloExchange
from unilaunch_gcn.inputs import Inputs
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.meter import Meter
from unilaunch_gcn.mindspore_network import DeviceAggregation, MindSporeDeviceNetwork, MindSporeNetwork
from unilaunch_gcn.network import Network, Problem
from unilaunch_gcn.partition import Part, order_nodes, split_parts
from unilaunch_gcn.setting import Setting
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_network import TorchDeviceNetwork, TorchNetwork

F64 = np.dtype(np.float64)
SHAPES: dict[str, dict[str, Any]] = {
    "product first": {"hidden": 4},
    "aggregated once": {"hidden": 4, "dropout": 0},
    "aggregation first": {"hidden": 20, "layers": 3},
    "one layer": {"layers": 1},
}


@pytest.fixture(scope="module", autouse=True)
def _mindspore_on_cpu() -> None:
    ms.set_device("CPU")
    ms.runtime.launch_blocking()


def _part(*, sparse: bool) -> Part:
    ends = np.random.default_rng(3).integers(0, 40, (90, 2))
    plain = make_graph(40, [(int(a), int(b)) for a, b in ends])
    draw = np.random.default_rng(4)
    x = (draw.random((40, 11)) * (draw.random((40, 11)) < 0.5)).astype(np.float32)
    features = sp.csr_array(x) if sparse else x
    graph = Graph(plain.indptr, plain.indices, features, np.arange(40) % 3, plain.split, 3)
    return next(split_parts(graph, order_nodes(graph, np.zeros(40, np.int64), 1)))


def _networks(part: Part, setting: Setting) -> list[Network]:
    aggregate = Aggregation(part, HaloExchange(part, Alone(), Meter()), 1, F64)
    problem = Problem(setting, part, aggregate, Inputs(setting, part, aggregate))
    return [
        TorchNetwork(problem),
        TorchDeviceNetwork(setting, part, Alone(), Meter(), "cpu"),
        MindSporeNetwork(problem),
        MindSporeDeviceNetwork(setting, part, Alone(), Meter()),
    ]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("shape", SHAPES)
def test_four_networks_are_one(shape: str, sparse: bool) -> None:  # noqa: FBT001
    """Loss, gradient, logits, counts and weights, in float64 to 1e-12."""
    part = _part(sparse=sparse)
    spec = GcnSpec(**SHAPES[shape])
    setting = Setting(plan_layers(spec, 11, 3), spec.dropout, 2, F64)
    first, *others = _networks(part, setting)
    for other in others:
        for epoch in (0, 7):
            mine, theirs = first.gradient(epoch), other.local(other.gradient(epoch))
            np.testing.assert_allclose(np.asarray(theirs), mine, rtol=0, atol=1e-12)
        np.testing.assert_allclose(other.logits(), first.logits(), rtol=0, atol=1e-12)
        counts = np.asarray(other.local(other.evaluate()))
        np.testing.assert_allclose(counts, first.evaluate(), rtol=1e-6)
        for mine, theirs in zip(first.weights(), other.weights(), strict=True):
            np.testing.assert_array_equal(theirs, mine)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_device_without_sparse_products_trains_the_same(shape: str) -> None:
    """Gather and add, as on an NPU, through the whole network: loss and gradient to 1e-12."""
    part = _part(sparse=True)
    spec = GcnSpec(**SHAPES[shape])
    setting = Setting(plan_layers(spec, 11, 3), spec.dropout, 2, F64)
    host, *_ = _networks(part, setting)
    device = TorchDeviceNetwork(setting, part, Alone(), Meter(), "cpu")
    for matrix in (device.aggregate.owned, device.aggregate.remote, *(device.inputs.sparse or ())):
        matrix.csr = None
    np.testing.assert_allclose(device.local(device.gradient(4)), host.gradient(4), rtol=0, atol=1e-12)
    np.testing.assert_allclose(device.logits(), host.logits(), rtol=0, atol=1e-12)


def test_an_empty_part_adds_nothing_on_any_network() -> None:
    """More ranks than nodes: loss and gradient are zeros of the right length, and no network stumbles."""
    graph = make_graph(3, [])
    empty = list(split_parts(graph, order_nodes(graph, np.zeros(3, np.int64), 2)))[1]
    spec = GcnSpec(hidden=4)
    setting = Setting(plan_layers(spec, 3, 2), spec.dropout, 2, F64)
    for network in _networks(empty, setting):
        np.testing.assert_array_equal(np.asarray(network.local(network.gradient(0))), np.zeros(1 + 3 * 4 + 4 * 2))
        np.testing.assert_array_equal(np.asarray(network.local(network.evaluate())), np.zeros(4))


class _Known(Collectives):
    """An exchange whose answer is known: each row holds what its global node has; what is sent is checked."""

    def __init__(self, part: Part, rows: NDArray[Any]) -> None:
        self.part, self.rows = part, rows

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        assert (list(send_counts), list(receive_counts)) == (
            self.part.send_counts.tolist(),
            self.part.halo_counts.tolist(),
        )
        np.testing.assert_array_equal(send.asnumpy(), self.rows[self.part.owned[self.part.send_rows]])
        receive.copy_(ms.Tensor(self.rows[self.part.halo]))
        return Alone()

    @override
    def all_reduce(self, buffer: Any) -> None:
        raise NotImplementedError

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        raise NotImplementedError

    @override
    def barrier(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("num_parts", [2, 3])
def test_mindspores_device_aggregation_takes_the_halo(num_parts: int) -> None:
    """On Ascend the halo comes by HCCL; here what would come is known: the product is the dense one."""
    ends = np.random.default_rng(3).integers(0, 30, (60, 2))
    graph = make_graph(30, [(int(a), int(b)) for a, b in ends])
    rows = np.random.default_rng(0).standard_normal((30, 5))
    expected = dense_a_hat(graph) @ rows
    for part in split_parts(graph, order_nodes(graph, np.arange(30) % num_parts, num_parts)):
        meter = Meter()
        operator = DeviceAggregation(part, _Known(part, rows), meter, F64)
        product = operator.matmat(ms.Tensor(rows[part.owned])).asnumpy()
        np.testing.assert_allclose(product, expected[part.owned], rtol=0, atol=1e-12)
        assert meter.read()[1] == part.num_halo * 5 * 8
