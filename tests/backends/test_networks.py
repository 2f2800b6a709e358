"""The device networks of both frameworks, on cpu tensors, beside the host networks: the same gradients and counts."""

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (its name in every PyTorch program)
from numpy.typing import NDArray
from typing_extensions import override

from graphs_by_hand import dense_a_hat, dense_adjacency, make_graph, parts_of, random_graph
from unilaunch.interfaces.backend import Exchange
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import DeviceNetwork, DeviceTensors, device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, by_layer, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeDeviceTensors, MindSporeTensors
from unilaunch_gcn.network import Network
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.part import Part

F64 = np.dtype(np.float64)
#: One layer, which exchanges nothing before the first epoch.
LAYERS = plan_layers(GcnSpec(layers=1), 3, 2)
SHAPES: dict[str, dict[str, Any]] = {
    "product first": {"hidden": 4},
    "aggregated once": {"hidden": 4, "dropout": 0},
    "aggregation first": {"hidden": 20, "layers": 3},
    "everything": {"conv": "sage", "bias": True, "layer_norm": True, "residual": True, "hidden": 5, "layers": 4},
    "means, aggregation first": {"conv": "sage", "hidden": 20, "layers": 3, "layer_norm": True},
}


def _networks(part: Part, config: NetworkConfig) -> list[Network]:
    problem = host_problem(Alone(), 1, config, part, Meter())
    return [
        HostNetwork(problem, TorchTensors()),
        _on_device(config, part, TorchDeviceTensors("cpu")),
        HostNetwork(problem, MindSporeTensors()),
        _on_device(config, part, MindSporeDeviceTensors()),
    ]


def _on_device(config: NetworkConfig, part: Part, tensors: DeviceTensors) -> DeviceNetwork:
    return device_network(config, part, tensors, Alone(), Meter())


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("shape", SHAPES)
def test_four_networks_are_one(shape: str, *, sparse: bool) -> None:
    """Loss, gradient, logits, counts and weights: to 1e-12, behind a norm, which divides by small numbers, to 1e-11."""
    (part,) = parts_of(random_graph(40, 90, 11, sparse=sparse))
    limit = 1e-11 if SHAPES[shape].get("layer_norm") else 1e-12
    spec = GcnSpec(**SHAPES[shape])
    config = NetworkConfig(plan_layers(spec, 11, 3), spec.dropout, 2, F64, spec.conv)
    first, *others = _networks(part, config)
    for other in others:
        for epoch in (0, 7):
            mine, theirs = first.gradient(epoch), other.local(other.gradient(epoch))
            np.testing.assert_allclose(np.asarray(theirs), mine, rtol=0, atol=limit)
        np.testing.assert_allclose(other.logits(), first.logits(), rtol=0, atol=limit)
        counts = np.asarray(other.local(other.evaluate()))
        np.testing.assert_allclose(counts, first.evaluate(), rtol=1e-6)
        for mine, theirs in zip(first.weights(), other.weights(), strict=True):
            np.testing.assert_array_equal(theirs, mine)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_network_is_the_textbooks(shape: str) -> None:
    """The same layers written with dense matrices and torch.nn's own functions: loss and gradient to 1e-12."""
    graph, spec = random_graph(40, 90, 11), GcnSpec(**SHAPES[shape] | {"dropout": 0})
    (part,) = parts_of(graph)
    layers = plan_layers(spec, 11, 3)
    network = _networks(part, NetworkConfig(layers, 0, 2, F64, spec.conv))[0]
    tensors = [torch.tensor(array, requires_grad=True) for array in network.weights()]
    matrix = dense_a_hat(graph)
    if spec.conv == "sage":
        adjacency = dense_adjacency(graph)
        matrix = adjacency / np.maximum(adjacency.sum(axis=1, keepdims=True), 1)
    matrix = matrix[part.owned][:, part.owned]  # nodes in the order of the part
    rows = torch.from_numpy(np.array(part.features)).double()
    for layer, own in zip(layers, by_layer(tensors, layers), strict=True):
        out = torch.from_numpy(matrix) @ rows @ own["weight"] + own.get("bias", 0)
        out = out + rows @ own["self_weight"] if spec.conv == "sage" else out
        if layer is layers[-1]:
            rows = out
            break
        if spec.layer_norm:
            out = F.layer_norm(out, (spec.hidden,), own["norm_scale"], own["norm_shift"])
        out = F.relu(out)
        rows = rows + out if spec.residual and layer is not layers[0] else out
    share, labels = torch.from_numpy(part.loss_share()), torch.from_numpy(np.array(part.labels))
    loss = (F.cross_entropy(rows, labels, reduction="none") * share).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    slopes = [tensor.grad.reshape(-1) for tensor in tensors if tensor.grad is not None]
    expected = torch.cat([loss.detach().reshape(1), torch.zeros(1), *slopes])
    np.testing.assert_allclose(network.gradient(0), expected.numpy(), rtol=0, atol=1e-12)


def test_an_empty_part_adds_nothing_on_any_network() -> None:
    """More ranks than nodes: loss and gradient are zeros of the right length, and no network stumbles."""
    graph = make_graph(3, [])
    empty = parts_of(graph, np.zeros(3, np.int64), 2)[1]
    spec = GcnSpec(hidden=4)
    config = NetworkConfig(plan_layers(spec, 3, 2), spec.dropout, 2, F64)
    for network in _networks(empty, config):
        np.testing.assert_array_equal(np.asarray(network.local(network.gradient(0))), np.zeros(2 + 3 * 4 + 4 * 2))
        np.testing.assert_array_equal(np.asarray(network.local(network.evaluate())), np.zeros(4))


class _Known(Alone):
    """An exchange whose answer is known: each row holds what its global node has; what is sent is checked."""

    def __init__(self, part: Part, rows: NDArray[Any]) -> None:
        self.part, self.rows = part, rows

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        assert list(send_counts) == self.part.send_counts.tolist()
        assert list(receive_counts) == self.part.halo_counts.tolist()
        sent = self.rows[self.part.owned[self.part.send_rows]]
        np.testing.assert_allclose(send.asnumpy(), sent, rtol=0, atol=1e-15)
        receive.copy_(ms.Tensor(self.rows[self.part.halo]))
        return Alone()


def test_mindspores_device_aggregation_takes_the_halo() -> None:
    """On Ascend the halo comes by HCCL, here from two known peers: the product is the dense one."""
    graph = random_graph(30, 60, 3)
    rows = np.random.default_rng(0).standard_normal((30, 5))
    expected = dense_a_hat(graph) @ rows
    travelling = rows * (graph.degrees[:, None] + 1.0) ** -0.5  # rows go out with their own factor
    for part in parts_of(graph, np.arange(30) % 3, 3):
        meter = Meter()
        config, known = NetworkConfig(LAYERS, 0.0, 0, F64), _Known(part, travelling)
        operator = device_network(config, part, MindSporeDeviceTensors(), known, meter).first_layer.aggregate
        product = operator.matmat(ms.Tensor(rows[part.owned])).asnumpy()
        np.testing.assert_allclose(product, expected[part.owned], rtol=0, atol=1e-12)
        assert meter.read()[1] == part.num_halo * 5 * 8


def _rounded(numbers: Any) -> NDArray[np.float64]:
    return torch.from_numpy(np.asarray(numbers, np.float32)).bfloat16().double().numpy()


def _product_of_ascend(rows: ms.Tensor, weight: ms.Tensor) -> ms.Tensor:
    """Multiply as Ascend does: MindSpore's CPU has no bfloat16 product, so that it is float32's, rounded."""
    assert rows.dtype == weight.dtype
    if rows.dtype != ms.bfloat16:
        return ms.ops.matmul(rows, weight)
    return ms.ops.matmul(rows.astype(ms.float32), weight.astype(ms.float32)).astype(ms.bfloat16)


@pytest.mark.parametrize("framework", ["torch", "mindspore"])
def test_a_device_rounds_rows_and_products(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As dense matrices say of the logits; the gradient is float32's within a hundredth."""
    monkeypatch.setattr(ms.ops, "mm", _product_of_ascend)
    graph = random_graph(40, 90, 11)
    (part,) = parts_of(graph)

    def network(precision: str) -> Network:
        spec = GcnSpec.model_validate({"dropout": 0, "precision": precision})
        config = NetworkConfig.of(spec, plan_layers(spec, 11, 3), 2)
        if framework == "torch":
            return _on_device(config, part, TorchDeviceTensors("cpu", is_bfloat16=config.is_bfloat16))
        return _on_device(config, part, MindSporeDeviceTensors(is_bfloat16=config.is_bfloat16))

    rough, fine = network("bfloat16"), network("float32")
    first, last = rough.weights()
    matrix, rows = dense_a_hat(graph), graph.features
    if framework == "torch":  # all products and rows; on MindSpore's devices those of the hidden layers
        hidden = _rounded(np.maximum(_rounded(_rounded(matrix @ _rounded(rows)) @ _rounded(first)), 0))
    else:
        hidden = np.maximum(matrix @ rows @ first, 0)
    expected = (matrix @ _rounded(_rounded(hidden) @ _rounded(last)))[part.owned]
    assert np.median(np.abs(rough.logits() - expected)) < 1e-6
    assert np.median(np.abs(fine.logits() - expected)) > 1e-4
    gradient, exact = (np.asarray(one.local(one.gradient(0)), np.float64) for one in (rough, fine))
    assert 0 < np.linalg.norm(gradient - exact) < 0.01 * np.linalg.norm(exact)
