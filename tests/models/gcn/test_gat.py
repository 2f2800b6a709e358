"""`--conv gat`: PyG's network in one process, the same on any parts and any framework, and what it refuses."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch_geometric.nn import GATConv

from models.graph.torch_parts import Whole, make_whole
from threaded_ranks import on_every_rank
from unilaunch.errors import RefusedTogetherError, SpecError
from unilaunch.interfaces.backend import Collectives, Placement
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeTensors
from unilaunch_gcn.model import GcnModel
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.tensors import Tensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

SHAPES: dict[str, dict[str, Any]] = {
    "two layers": {"hidden": 3, "heads": 4},
    "everything": {"hidden": 3, "heads": 2, "layers": 4, "bias": True, "layer_norm": True, "residual": True},
    "one layer": {"layers": 1, "bias": True},
}
OWNERS = [np.arange(40) // 20, np.arange(40) * 7 % 3, np.arange(40) % 2 * 3]  # the last: four parts, two are empty


@pytest.fixture(scope="module")
def whole() -> Whole:
    """Directed, with loops, duplicates, and nodes without an edge."""
    return make_whole()


def _parts(whole: Whole, owner: NDArray[np.int64]) -> list[Part]:
    return list(split_parts(whole.graph, order_nodes(whole.graph, owner, int(owner.max()) + 1)))


def _config(dropout: float, **options: Any) -> NetworkConfig:
    spec = GcnSpec(conv="gat", precision="float64", dropout=dropout, **options)
    return NetworkConfig.of(spec, plan_layers(spec, 8, 3), 2)


def _network(config: NetworkConfig, part: Part, tensors: Tensors | None = None, collectives: Any = None) -> HostNetwork:
    problem = host_problem(collectives or Alone(), 1, config, part, Meter())
    return HostNetwork(problem, tensors or TorchTensors())


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_pygs_network(bias: bool, whole: Whole) -> None:  # noqa: FBT001
    """Three layers with the same weights, on a directed graph: scores, loss and every gradient to 1e-12."""
    config = _config(0, hidden=4, heads=2, layers=3, bias=bias)
    part = _parts(whole, np.zeros(40, np.int64))[0]
    network, order = _network(config, part), torch.from_numpy(np.array(part.owned))
    convs = [GATConv(layer.width_in, layer.width_out // layer.heads, layer.heads, bias=bias) for layer in config.layers]
    weights = [torch.from_numpy(array).requires_grad_() for array in network.weights()]
    x, given = whole.x, iter(weights)
    for conv in convs:
        own: dict[str, Any] = {"lin.weight": next(given).T, "att_src": next(given)[None], "att_dst": next(given)[None]}
        own |= {"bias": next(given)} if bias else {}
        x = torch.func.functional_call(conv.double(), own, (x, whole.edge_index))
        x = torch.nn.functional.elu(x) if conv is not convs[-1] else x
    loss = torch.nn.functional.cross_entropy(x[whole.train_mask], whole.y[whole.train_mask])
    gradients = torch.autograd.grad(loss, weights)
    np.testing.assert_allclose(network.logits(), x.detach()[order], rtol=0, atol=1e-12)
    expected = np.concatenate([[loss.item(), 0], *(gradient.numpy().ravel() for gradient in gradients)])
    np.testing.assert_allclose(network.gradient(0), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_do_not_depend_on_the_parts(shape: str, whole: Whole) -> None:
    """With dropout, on 2 to 4 parts, some of them empty: gradient and counts to 1e-11; bytes as the layers say."""
    config = _config(0.4, **SHAPES[shape])
    alone = _network(config, _parts(whole, np.zeros(40, np.int64))[0])
    gradient, counts = alone.gradient(3), alone.evaluate()
    assert np.abs(alone.gradient(4) - gradient).max() > 1e-3, "another epoch drops something else"
    for owner in OWNERS:
        parts = _parts(whole, owner)
        for found, evaluated, _ in (results := on_every_rank(len(parts), _work(config, parts))):
            np.testing.assert_allclose(found, gradient, rtol=0, atol=1e-11)
            np.testing.assert_allclose(evaluated, counts, rtol=0, atol=1e-11)
        columns = sum(layer.exchanges * layer.width for layer in config.layers)
        assert sum(result[2] for result in results) == 8 * columns * sum(part.num_halo for part in parts)


def _work(config: NetworkConfig, parts: list[Part]) -> Callable[[int, Collectives], tuple[Any, Any, int]]:
    def work(rank: int, collectives: Collectives) -> tuple[Any, Any, int]:
        meter = Meter()
        network = HostNetwork(host_problem(collectives, 1, config, parts[rank], meter), TorchTensors())
        gradient, moved = network.gradient(3), meter.read()[1]
        counts = network.evaluate()
        for buffer in (gradient, counts):
            collectives.all_reduce(buffer)
        return gradient, counts, moved

    return work


@pytest.mark.parametrize("shape", SHAPES)
def test_all_frameworks_are_one(shape: str, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch, MindSpore and a backend from outside: weights, gradient with dropout and scores to 1e-11."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "numpy_backend")
    from unilaunch_numpy.network import NumpyTensors

    config = _config(0.4, **SHAPES[shape])
    part = _parts(whole, np.zeros(40, np.int64))[0]
    expected = _network(config, part)
    for tensors in (MindSporeTensors(), NumpyTensors(config)):
        network = _network(config, part, tensors)
        np.testing.assert_array_equal(network.flat, expected.flat)
        np.testing.assert_allclose(network.gradient(3), expected.gradient(3), rtol=0, atol=1e-11)
        np.testing.assert_allclose(network.logits(), expected.logits(), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": "tensor"}, {"parallel": "auto"}, {"precision": "bfloat16"}, {"use_gdc": True},
        {"conv": "sage", "heads": 4},
    ],
    ids=str,
)  # fmt: skip
def test_what_attention_lacks_is_refused(options: dict[str, Any]) -> None:
    """By name, in one line, before anything is read; and heads without attention."""
    with pytest.raises(SpecError, match=r"^--[a-z-]+ ?\S* --conv \w+: [^\n]+$"):
        GcnModel().check(GcnSpec(**{"conv": "gat"} | options), 1)


def test_a_device_refuses_attention() -> None:
    """By name, before a graph is looked for; they were refused after the cut, when the framework had been imported."""
    session: Any = SimpleNamespace(placement=Placement("cuda", 0, 1))
    with pytest.raises(RefusedTogetherError, match=r"^--conv gat --device cuda: [^\n]*--device cpu$"):
        GcnModel().prepare(GcnSpec(dataset="nowhere", conv="gat"), session)
