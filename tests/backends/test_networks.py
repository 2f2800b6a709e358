"""The device networks of both frameworks, on cpu tensors, beside the host networks: the same gradients and counts."""

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from graphs_by_hand import make_graph
from unilaunch.rank.alone import Alone
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.graph import Graph
from unilaunch_gcn.halo import HaloExchange
from unilaunch_gcn.inputs import Inputs
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.meter import Meter
from unilaunch_gcn.mindspore_network import MindSporeDeviceNetwork, MindSporeNetwork
from unilaunch_gcn.network import Network, Problem
from unilaunch_gcn.partition import Part, order_nodes, split_parts
from unilaunch_gcn.setting import Setting
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_network import TorchDeviceNetwork, TorchNetwork
from unilaunch_torch.sparse import SparseMatrix

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


@pytest.mark.parametrize("has_csr", [True, False], ids=["CSR", "gather and add"])
def test_sparse_product_on_a_device(has_csr: bool) -> None:  # noqa: FBT001
    """Both ways that torch's devices know, against SciPy."""
    matrix = sp.random_array((7, 5), density=0.5, format="csr", rng=np.random.default_rng(1))
    rows = np.random.default_rng(0).standard_normal((5, 3))
    product = SparseMatrix(matrix.indptr, matrix.indices, matrix.data, matrix.shape, torch.device("cpu"))
    product.csr = product.csr if has_csr else None
    np.testing.assert_allclose(product.matmat(torch.from_numpy(rows)).numpy(), matrix @ rows, atol=1e-12)
