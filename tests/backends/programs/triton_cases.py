"""Triton's kernels in its interpreter, on tensors of the host: the results of numpy and of the host's network.

Start it with TRITON_INTERPRET=1, which Triton reads when the kernels are imported.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
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
from unilaunch_gcn.aggregation import ONES, DiagonalScaling
from unilaunch_gcn.device import Dropout, Epilogue, device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import FusedAggregation, TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.dropout import entry_mask, fill_mask, stream_keys
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.cut import slice_nodes
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


def main() -> None:
    """Check everything."""
    for kind, limit in ((torch.float64, 1e-14), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        check_product(kind, limit)
    check_masks()
    check_adam()
    for shape, sparse in SHAPES:
        check_network(shape, sparse=sparse)
    check_bfloat16()
    check_columns()
    check_halo("float64", 1e-14)
    check_halo("bfloat16", 2e-2)
    sys.stdout.write("the same\n")


def _draw(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(shape)


def _on_device(matrix: Any, kind: torch.dtype, *, values: bool = True) -> Any:
    return SimpleNamespace(
        indptr=torch.from_numpy(matrix.indptr.astype(np.int32)),
        indices=torch.from_numpy(matrix.indices.astype(np.int32)),
        values=torch.from_numpy(matrix.data).to(kind) if values else None,
    )


def _matrix(num_rows: int, num_columns: int) -> sp.csr_array:
    """Return a matrix with an empty row, a full one and others."""
    dense = _draw(num_rows, num_columns, seed=1) * (_draw(num_rows, num_columns, seed=2) > 1)
    dense[0], dense[1] = 0, 1
    return sp.csr_array(dense)


def check_product(kind: torch.dtype, limit: float) -> None:
    """Everything in one pass, in two blocks of columns; rows in *kind*, all else in the type of the sums."""
    size, width = 6, 130
    matrix, rows, plus, bias = _matrix(size, 20), _draw(20, width), _draw(size, width, seed=3), _draw(width, seed=4)
    left, right, loops = np.abs(_draw(3, 20, 1, seed=5))
    partial, sums = _draw(size, width, seed=6), torch.float64 if kind == torch.float64 else torch.float32
    given = {"left": left[:size], "right": right, "loops": loops[:size]}
    tensors = {name: torch.from_numpy(values).to(sums) for name, values in given.items()}
    scaling = DiagonalScaling(tensors["left"], tensors["right"], tensors["loops"])
    nodes = np.arange(size, dtype=np.int64) + 2**32 - 3
    epilogue = Epilogue(
        torch.from_numpy(plus).to(kind), torch.from_numpy(bias).to(sums), relu=True,
        dropout=Dropout(torch.from_numpy(nodes), torch.tensor(KEYS), 0.4),
    )  # fmt: skip
    mask = np.empty((size, width))
    fill_mask(mask, nodes, KEYS, 0.4)
    scaled = right * rows
    found = triton_kernels.multiply(
        _on_device(matrix, sums), torch.from_numpy(rows).to(kind), torch.empty(size, width, dtype=kind),
        scaling=scaling, partial=torch.from_numpy(partial).to(sums), epilogue=epilogue,
    )  # fmt: skip
    expected = left[:size] * (matrix @ scaled + loops[:size] * scaled[:size] + partial) + plus + bias
    expected = np.maximum(expected, 0) * mask
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=limit, atol=limit * 10)
    before = triton_kernels.gradient(epilogue, found, torch.from_numpy(plus).to(kind)).double().numpy()
    np.testing.assert_allclose(before, plus * mask * (expected > 0), rtol=limit, atol=limit)
    ones = _on_device(matrix, sums, values=False)
    found = triton_kernels.multiply(
        ones, torch.from_numpy(rows[:, :3].copy()).to(kind), torch.empty(size, 3, dtype=sums),
        scaling=DiagonalScaling(None, None, ONES),
    )  # fmt: skip
    expected = (matrix != 0) @ rows[:, :3] + rows[:size, :3]
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=limit, atol=limit * 10)


def check_masks() -> None:
    """The bits of the host's masks: of rows, of the entries of a matrix and of its transpose; NaN survives a ReLU."""
    nodes = np.array([0, 1, 2**31, 2**32 + 5, 2**40], np.int64)
    for probability in (0.3, 0.999):
        dropout = Dropout(torch.from_numpy(nodes), torch.tensor(KEYS), probability)
        mask, ones = np.empty((5, 17)), torch.ones(5, 17, dtype=torch.float64)
        fill_mask(mask, nodes, KEYS, probability)
        for found in (
            triton_kernels.apply(Epilogue(dropout=dropout), ones, torch.empty_like(ones)),
            triton_kernels.gradient(Epilogue(dropout=dropout), None, ones),
        ):
            np.testing.assert_array_equal(found.numpy(), mask)
    features = _matrix(5, 9)
    rows, columns = features.tocoo().coords
    dropped = features.copy()
    dropped.data *= entry_mask(nodes[rows], columns, KEYS, probability, np.dtype(np.float64))
    for kind, matrix, expected in (("rows", features, dropped), ("columns", features.T.tocsr(), dropped.T)):
        identity = torch.eye(matrix.shape[1], dtype=torch.float64)
        out = torch.empty(matrix.shape, dtype=torch.float64)
        triton_kernels.multiply(_on_device(matrix, torch.float64), identity, out, entries=(kind, dropout))
        np.testing.assert_array_equal(out.numpy(), expected.toarray())
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


def _config(shape: dict[str, Any]) -> NetworkConfig:
    spec = GcnSpec.model_validate({"precision": "float64", **shape})
    return NetworkConfig.of(spec, plan_layers(spec, 9, 3), 2)


def check_network(shape: dict[str, Any], *, sparse: bool) -> None:
    """Loss, gradient and logits are the host's."""
    (part,), config = parts_of(random_graph(7, 14, 9, sparse=sparse)), _config(shape)
    host = HostNetwork(host_problem(Alone(), 1, config, part, Meter()), TorchTensors())
    fused = device_network(config, part, TorchDeviceTensors("cpu", is_fused=True), Alone(), Meter())
    np.testing.assert_allclose(fused.gradient(3).numpy(), host.gradient(3), rtol=0, atol=1e-11)
    np.testing.assert_allclose(fused.logits(), host.logits(), rtol=0, atol=1e-11)


def check_bfloat16() -> None:
    """Each rounding of rows is torch's operations' own, but for a last bit that another order of a sum decides."""
    (part,), config = parts_of(random_graph(7, 14, 9)), _config({"hidden": 4, "precision": "bfloat16", "bias": True})
    both = [
        device_network(config, part, TorchDeviceTensors("cpu", is_bfloat16=True, is_fused=is_fused), Alone(), Meter())
        for is_fused in (False, True)
    ]
    plain, fused = (network.gradient(3).numpy() for network in both)
    assert np.linalg.norm(fused - plain) <= 0.01 * np.linalg.norm(plain)
    plain, fused = (network.logits() for network in both)
    assert np.linalg.norm(fused - plain) <= 0.01 * np.linalg.norm(plain)


def check_columns() -> None:
    """Where ranks divide columns, sums of bfloat16 rows are float32, as with torch's operations."""
    graph, config = random_graph(7, 14, 9), _config({"hidden": 4, "precision": "bfloat16", "conv": "sage"})
    adjacency, (part,) = slice_nodes(graph, 1)
    rows = torch.from_numpy(_draw(part.num_owned, 4)).bfloat16()
    found, expected = (
        device_network(
            config, replace(part, adjacency=adjacency), TorchDeviceTensors("cpu", is_bfloat16=True, is_fused=is_fused),
            Alone(), Meter(),
        ).first_layer.aggregate.matmat(rows)
        for is_fused in (True, False)
    )  # fmt: skip
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=1e-6)


class _Known(Alone):
    """An exchange whose answer is known: each row holds what its global node has; what is sent is checked."""

    def __init__(self, part: Part, rows: torch.Tensor) -> None:
        self.part, self.rows = part, rows

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        torch.testing.assert_close(send, self.rows[self.part.owned[self.part.send_rows]], rtol=0, atol=1e-15)
        receive.copy_(self.rows[self.part.halo])
        return Alone()


def check_halo(precision: str, limit: float) -> None:
    """Two parts: the owned columns, then the halo's on top of them, then the epilogue."""
    graph, config = random_graph(9, 18, 9), _config({"hidden": 4, "precision": precision})
    kind, is_bfloat16 = getattr(torch, precision), precision == "bfloat16"
    rows = torch.from_numpy(_draw(9, 4)).to(kind)
    factors = torch.from_numpy((graph.degrees[:, None] + 1.0) ** -0.5).to(torch.float32 if is_bfloat16 else kind)
    travelling = (rows * factors).to(kind)  # rows go out with their own factor; only the product is rounded
    for part in parts_of(graph, np.arange(9) % 2):
        known, meter = _Known(part, travelling), Meter()
        tensors = TorchDeviceTensors("cpu", is_bfloat16=is_bfloat16, is_fused=True)
        network = device_network(config, part, tensors, known, meter)
        aggregation = network.first_layer.aggregate
        assert isinstance(aggregation, FusedAggregation)
        own = rows[part.owned]
        found = aggregation.finished(own, Epilogue(relu=True), torch.empty_like(own))
        expected = np.maximum(dense_a_hat(graph) @ rows.double().numpy(), 0)[part.owned]
        np.testing.assert_allclose(found.double().numpy(), expected, rtol=0, atol=limit)
        assert meter.read()[1] == part.num_halo * 4 * kind.itemsize


if __name__ == "__main__":
    main()
