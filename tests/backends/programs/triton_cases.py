"""Triton's kernels in its interpreter, on tensors of the host: the results of numpy and of the host's network.

Start it with TRITON_INTERPRET=1, which Triton reads when the kernels are imported.
"""

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphs_by_hand import dense_a_hat, parts_of, random_graph
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn import triton_kernels
from unilaunch_gcn.device import DeviceNetwork, Epilogue, device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import FusedAggregation, TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.cut import slice_nodes
from unilaunch_graph.partition.part import Part

#: Networks that use every order of products, every step of an epilogue, two blocks of columns, and sparse features.
SHAPES: list[tuple[dict[str, Any], bool]] = [
    ({"hidden": 4}, False),
    ({"hidden": 130, "bias": True}, True),
    ({"hidden": 4, "dropout": 0, "bias": True}, True),
    ({"conv": "sage", "bias": True, "layer_norm": True, "residual": True, "hidden": 4, "layers": 3}, True),
]


def _draw(*shape: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal(shape)


def check_adam() -> None:
    """Three steps are numpy's; and a ReLU keeps NaN."""
    weights, gradients = _draw(1100), _draw(3, 1100)
    found = torch.from_numpy(weights.copy())
    host = Adam(weights, weights * 0, 0.01, 0.1, 700)
    first, second = torch.zeros(2, 1100, dtype=torch.float64)
    for steps, gradient in enumerate(gradients, 1):
        powers = torch.tensor([0.9, 0.999], dtype=torch.float64) ** steps
        triton_kernels.adam_step(found, (first, second), torch.from_numpy(gradient), powers, (0.01, 0.1, 700))
        host.step(gradient.copy())
    np.testing.assert_allclose(found.numpy(), weights, rtol=0, atol=1e-14)
    lost = triton_kernels.apply(Epilogue(relu=True), torch.full((1, 1), torch.nan), torch.empty(1, 1))
    assert lost.isnan().all()


def _config(**shape: Any) -> NetworkConfig:
    spec = GcnSpec.model_validate({"precision": "float64", "hidden": 4, **shape})
    return NetworkConfig.of(spec, plan_layers(spec, 9, 3), 2)


def _device(
    config: NetworkConfig, part: Part, exchange: Alone, meter: Meter, *, is_fused: bool = True
) -> DeviceNetwork:
    tensors = TorchDeviceTensors("cpu", is_bfloat16=config.is_bfloat16, is_fused=is_fused)
    return device_network(config, part, tensors, exchange, meter)


def check_network(shape: dict[str, Any], *, sparse: bool) -> None:
    """Loss, gradient and logits are the host's, with the masks of nodes beyond 32 bits."""
    (part,), config = parts_of(random_graph(7, 14, 9, sparse=sparse)), _config(**shape)
    part = replace(part, owned=part.owned + 2**32 - 3)
    host = HostNetwork(host_problem(Alone(), 1, config, part, Meter()), TorchTensors())
    fused = _device(config, part, Alone(), Meter())
    np.testing.assert_allclose(np.asarray(fused.gradient(3)), host.gradient(3), rtol=0, atol=1e-11)
    np.testing.assert_allclose(fused.logits(), host.logits(), rtol=0, atol=1e-11)


def check_bfloat16() -> None:
    """Each rounding of rows is torch's operations' own, but for a last bit that another order of a sum decides."""
    (part,), config = parts_of(random_graph(7, 14, 9)), _config(precision="bfloat16", bias=True)
    plain, fused = (_device(config, part, Alone(), Meter(), is_fused=is_fused) for is_fused in (False, True))
    for expected, found in ((plain.gradient(3), fused.gradient(3)), (plain.logits(), fused.logits())):
        difference = np.linalg.norm(np.asarray(found) - np.asarray(expected))
        assert difference <= 0.01 * np.linalg.norm(np.asarray(expected))


def check_columns() -> None:
    """Where ranks divide columns, sums of bfloat16 rows are float32, as with torch's operations."""
    adjacency, (part,) = slice_nodes(random_graph(7, 14, 9), 1)
    part, config = replace(part, adjacency=adjacency), _config(precision="bfloat16", conv="sage")
    rows = torch.from_numpy(_draw(part.num_owned, 4)).bfloat16()
    found, expected = (
        _device(config, part, Alone(), Meter(), is_fused=is_fused).first_layer.aggregate.matmat(rows)
        for is_fused in (True, False)
    )
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=1e-6)


def _exchange(part: Part, rows: torch.Tensor, send: Any, _: Any, receive: Any, __: Any) -> Alone:
    """Check what is sent, and receive what each global node has."""
    torch.testing.assert_close(send, rows[part.owned[part.send_rows]], rtol=0, atol=1e-15)
    receive.copy_(rows[part.halo])
    return Alone()


def check_halo(precision: str, limit: float) -> None:
    """Two parts: the owned columns, then the halo's on top of them, then the epilogue."""
    graph, config, kind = random_graph(9, 18, 9), _config(precision=precision), getattr(torch, precision)
    rows = torch.from_numpy(_draw(9, 4)).to(kind)
    factors = torch.from_numpy((graph.degrees[:, None] + 1.0) ** -0.5)
    factors = factors.float() if config.is_bfloat16 else factors  # rows go out with their own; the product is rounded
    travelling = (rows * factors).to(kind)
    for part in parts_of(graph, np.arange(9) % 2):
        known, meter = Alone(), Meter()
        known.exchange = partial(_exchange, part, travelling)  # type: ignore[method-assign]
        network = _device(config, part, known, meter)
        aggregation = network.first_layer.aggregate
        assert isinstance(aggregation, FusedAggregation)
        own = rows[part.owned]
        found = aggregation.finished(own, Epilogue(relu=True), torch.empty_like(own))
        expected = np.maximum(dense_a_hat(graph) @ rows.double().numpy(), 0)[part.owned]
        np.testing.assert_allclose(found.double().numpy(), expected, rtol=0, atol=limit)
        assert meter.read()[1] == part.num_halo * 4 * kind.itemsize


if __name__ == "__main__":
    check_adam()
    for tested_shape, is_sparse in SHAPES:
        check_network(tested_shape, sparse=is_sparse)
    check_bfloat16()
    check_columns()
    check_halo("float64", 1e-14)
    check_halo("bfloat16", 2e-2)
    sys.stdout.write("the same\n")
