"""Triton's kernels in its interpreter, on tensors of the host: the results of numpy and of the host's network.

Start it with TRITON_INTERPRET=1, which Triton reads when the kernels are imported.
"""

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from typing_extensions import override

from graphs_by_hand import dense_a_hat, parts_of, random_graph
from unilaunch.interfaces.backend import Exchange
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn import triton_kernels
from unilaunch_gcn.aggregation import DiagonalScaling
from unilaunch_gcn.device import DeviceNetwork, Dropout, Epilogue, device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import FusedAggregation, TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.dropout import fill_mask, stream_keys
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.part import Part

KEYS = stream_keys(5, 7, 1)
#: Networks that use every order of products, every step of an epilogue, and features with and without dropout.
SHAPES: list[tuple[dict[str, Any], bool]] = [
    ({"hidden": 4}, False),
    ({"hidden": 4}, True),
    ({"hidden": 4, "dropout": 0, "bias": True}, True),
    ({"hidden": 13, "bias": True}, False),
    ({"conv": "sage", "bias": True, "layer_norm": True, "residual": True, "hidden": 4, "layers": 3}, True),
]


def _draw(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(shape)


def check_product(kind: torch.dtype, limit: float) -> None:
    """Everything in one pass, in two blocks of columns; rows in *kind*, all else in the type of the sums."""
    size, width, sums = 6, 130, torch.float64 if kind == torch.float64 else torch.float32
    dense = _draw(size, 20, seed=1) * (_draw(size, 20, seed=2) > 1)
    dense[0], dense[1] = 0, 1  # an empty row, and a full one
    matrix = sp.csr_array(dense)
    rows, plus, bias, partial = _draw(20, width), _draw(size, width, seed=3), _draw(width, seed=4), _draw(size, width)
    left, right, loops = np.abs(_draw(3, 20, 1, seed=5))
    nodes, mask = np.arange(size, dtype=np.int64) + 2**32 - 3, np.empty((size, width))
    fill_mask(mask, nodes, KEYS, 0.4)

    def given(array: NDArray[Any], kind: torch.dtype = sums) -> torch.Tensor:
        return torch.from_numpy(array).to(kind)

    on_device: Any = SimpleNamespace(
        indptr=given(matrix.indptr, torch.int32), indices=given(matrix.indices, torch.int32), values=given(matrix.data)
    )
    found = triton_kernels.multiply(
        on_device, given(rows, kind), torch.empty(size, width, dtype=kind),
        scaling=DiagonalScaling(given(left[:size]), given(right), given(loops[:size])), partial=given(partial),
        epilogue=Epilogue(
            given(plus, kind), given(bias), relu=True,
            dropout=Dropout(torch.from_numpy(nodes), torch.tensor(KEYS), 0.4),
        ),
    )  # fmt: skip
    scaled = right * rows
    expected = left[:size] * (matrix @ scaled + loops[:size] * scaled[:size] + partial) + plus + bias
    np.testing.assert_allclose(found.double().numpy(), np.maximum(expected, 0) * mask, rtol=limit, atol=limit * 10)


def check_masks() -> None:
    """The bits of the host's masks, forward and backward; NaN survives a ReLU."""
    nodes = np.array([0, 1, 2**31, 2**32 + 5, 2**40], np.int64)
    for probability in (0.3, 0.999):
        epilogue = Epilogue(dropout=Dropout(torch.from_numpy(nodes), torch.tensor(KEYS), probability))
        mask, ones = np.empty((5, 17)), torch.ones(5, 17, dtype=torch.float64)
        fill_mask(mask, nodes, KEYS, probability)
        forward = triton_kernels.apply(epilogue, ones, torch.empty_like(ones))
        for found in (forward, triton_kernels.gradient(epilogue, None, ones)):
            np.testing.assert_array_equal(found.numpy(), mask)
    lost = triton_kernels.apply(Epilogue(relu=True), torch.full((1, 1), torch.nan), torch.empty(1, 1))
    assert lost.isnan().all()


def check_adam() -> None:
    """Three steps of numpy's."""
    weights, gradients = _draw(1100), _draw(3, 1100, seed=1)
    found = torch.from_numpy(weights.copy())
    host = Adam(weights, weights * 0, 0.01, 0.1, 700)
    first, second = torch.zeros(2, 1100, dtype=torch.float64)
    for steps, gradient in enumerate(gradients, 1):
        powers = torch.tensor([0.9, 0.999], dtype=torch.float64) ** steps
        triton_kernels.adam_step(found, (first, second), torch.from_numpy(gradient), powers, (0.01, 0.1, 700))
        host.step(gradient.copy())
    np.testing.assert_allclose(found.numpy(), weights, rtol=0, atol=1e-14)


def _config(**shape: Any) -> NetworkConfig:
    spec = GcnSpec.model_validate({"precision": "float64", "hidden": 4, **shape})
    return NetworkConfig.of(spec, plan_layers(spec, 9, 3), 2)


def _device(
    config: NetworkConfig, part: Part, exchange: Alone, meter: Meter, *, is_fused: bool = True
) -> DeviceNetwork:
    tensors = TorchDeviceTensors("cpu", is_bfloat16=config.is_bfloat16, is_fused=is_fused)
    return device_network(config, part, tensors, exchange, meter)


def check_network(shape: dict[str, Any], *, sparse: bool) -> None:
    """Loss, gradient and logits are the host's."""
    (part,), config = parts_of(random_graph(7, 14, 9, sparse=sparse)), _config(**shape)
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


class _Known(Alone):
    """An exchange whose answer is known: each row holds what its global node has; what is sent is checked."""

    def __init__(self, part: Part, rows: torch.Tensor) -> None:
        self.part, self.rows = part, rows

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        torch.testing.assert_close(send, self.rows[self.part.owned[self.part.send_rows]], rtol=0, atol=1e-15)
        receive.copy_(self.rows[self.part.halo])
        return self


def check_halo(precision: str, limit: float) -> None:
    """Two parts: the owned columns, then the halo's on top of them, then the epilogue."""
    graph, config, kind = random_graph(9, 18, 9), _config(precision=precision), getattr(torch, precision)
    rows = torch.from_numpy(_draw(9, 4)).to(kind)
    factors = torch.from_numpy((graph.degrees[:, None] + 1.0) ** -0.5)
    factors = factors.float() if config.is_bfloat16 else factors  # rows go out with their own; the product is rounded
    for part in parts_of(graph, np.arange(9) % 2):
        meter = Meter()
        network = _device(config, part, _Known(part, (rows * factors).to(kind)), meter)
        aggregation = network.first_layer.aggregate
        assert isinstance(aggregation, FusedAggregation)
        own = rows[part.owned]
        found = aggregation.finished(own, Epilogue(relu=True), torch.empty_like(own))
        expected = np.maximum(dense_a_hat(graph) @ rows.double().numpy(), 0)[part.owned]
        np.testing.assert_allclose(found.double().numpy(), expected, rtol=0, atol=limit)
        assert meter.read()[1] == part.num_halo * 4 * kind.itemsize


if __name__ == "__main__":
    for tested_kind, allowed in ((torch.float64, 1e-14), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        check_product(tested_kind, allowed)
    check_masks()
    check_adam()
    for tested_shape, is_sparse in SHAPES:
        check_network(tested_shape, sparse=is_sparse)
    check_bfloat16()
    check_halo("float64", 1e-14)
    check_halo("bfloat16", 2e-2)
    sys.stdout.write("the same\n")
