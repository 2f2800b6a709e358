"""The GCN's networks: on the host and on a device, by both frameworks, the textbook's numbers; and the steps of a GPU.

A device here is the host's memory, except that nothing may wait for it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F  # noqa: N812  (its name in every PyTorch program)
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from typing_extensions import override

import unilaunch_mindspore.sparse as mindspore_sparse
import unilaunch_torch.sparse as torch_sparse
from graphs_by_hand import dense_a_hat, dense_adjacency, make_graph, parts_of, random_graph
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import DeviceNetwork, DeviceTensors, device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, by_layer, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeDeviceTensors, MindSporeTensors
from unilaunch_gcn.network import Network
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.tensors import Tensors
from unilaunch_gcn.torch_device import DeviceSteps, TorchDeviceNetwork, TorchDeviceTensors, Work
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.part import Part

SHAPES: dict[str, dict[str, Any]] = {
    "product first": {"hidden": 4, "bias": True},
    "aggregated once": {"hidden": 4, "dropout": 0},
    "aggregation first": {"hidden": 20, "layers": 3},
    "everything": {"conv": "sage", "bias": True, "layer_norm": True, "residual": True, "hidden": 5, "layers": 4},
    "means, aggregation first": {"conv": "sage", "hidden": 20, "layers": 3, "layer_norm": True},
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
dense_and_sparse = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


def _config(part: Part, precision: str = "float64", seed: int = 2, **shape: Any) -> NetworkConfig:
    spec = GcnSpec.model_validate({"precision": precision, **shape})
    return NetworkConfig.of(spec, plan_layers(spec, part.num_features, part.num_classes), seed)


def _on_host(config: NetworkConfig, part: Part, tensors: Tensors) -> HostNetwork:
    return HostNetwork(host_problem(Alone(), 1, config, part, Meter()), tensors)


def _on_device(config: NetworkConfig, part: Part, tensors: DeviceTensors) -> DeviceNetwork:
    return device_network(config, part, tensors, Alone(), Meter())


def _networks(config: NetworkConfig, part: Part) -> list[Network]:
    return [
        _on_host(config, part, TorchTensors()), _on_device(config, part, TorchDeviceTensors("cpu")),
        _on_host(config, part, MindSporeTensors()), _on_device(config, part, MindSporeDeviceTensors()),
    ]  # fmt: skip


@dense_and_sparse
@each_shape
def test_four_networks_are_one(shape: dict[str, Any], *, sparse: bool) -> None:
    """Loss, gradient, logits, counts and weights: to 1e-12, behind a norm, which divides by small numbers, to 1e-11."""
    (part,) = parts_of(random_graph(40, 90, 11, sparse=sparse))
    limit = 1e-11 if shape.get("layer_norm") else 1e-12
    first, *others = _networks(_config(part, **shape), part)
    for other in others:
        for epoch in (0, 7):
            theirs = np.asarray(other.local(other.gradient(epoch)))
            np.testing.assert_allclose(theirs, first.gradient(epoch), rtol=0, atol=limit)
        np.testing.assert_allclose(other.logits(), first.logits(), rtol=0, atol=limit)
        np.testing.assert_allclose(np.asarray(other.local(other.evaluate())), first.evaluate(), rtol=1e-6)
        for mine, others_weight in zip(first.weights(), other.weights(), strict=True):
            np.testing.assert_array_equal(others_weight, mine)


@each_shape
def test_the_network_is_the_textbooks(shape: dict[str, Any]) -> None:
    """The same layers written with dense matrices and torch.nn's own functions: loss and gradient to 1e-12."""
    graph, spec = random_graph(40, 90, 11), GcnSpec(**shape | {"dropout": 0})
    (part,) = parts_of(graph)
    config = _config(part, **shape | {"dropout": 0})
    network = _on_host(config, part, TorchTensors())
    tensors = [torch.tensor(array, requires_grad=True) for array in network.weights()]
    matrix = dense_a_hat(graph)
    if spec.conv == "sage":
        adjacency = dense_adjacency(graph)
        matrix = adjacency / np.maximum(adjacency.sum(axis=1, keepdims=True), 1)
    matrix = matrix[part.owned][:, part.owned]  # nodes in the order of the part
    rows = torch.from_numpy(np.array(part.features)).double()
    for layer, own in zip(config.layers, by_layer(tensors, config.layers), strict=True):
        out = torch.from_numpy(matrix) @ rows @ own["weight"] + own.get("bias", 0)
        out = out + rows @ own["self_weight"] if spec.conv == "sage" else out
        if layer is config.layers[-1]:
            rows = out
            break
        if spec.layer_norm:
            out = F.layer_norm(out, (spec.hidden,), own["norm_scale"], own["norm_shift"])
        out = F.relu(out)
        rows = rows + out if spec.residual and layer is not config.layers[0] else out
    share, labels = torch.from_numpy(part.loss_share()), torch.from_numpy(np.array(part.labels))
    loss = (F.cross_entropy(rows, labels, reduction="none") * share).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    slopes = [tensor.grad.reshape(-1) for tensor in tensors if tensor.grad is not None]
    expected = torch.cat([loss.detach().reshape(1), torch.zeros(1), *slopes])
    np.testing.assert_allclose(network.gradient(0), expected.numpy(), rtol=0, atol=1e-12)


def test_an_empty_part_adds_nothing_on_any_network() -> None:
    """More ranks than nodes: loss and gradient are zeros of the right length, and no network stumbles."""
    empty = parts_of(make_graph(3, []), np.zeros(3, np.int64), 2)[1]
    for network in _networks(_config(empty, hidden=4), empty):
        np.testing.assert_array_equal(np.asarray(network.local(network.gradient(0))), np.zeros(2 + 3 * 4 + 4 * 2))
        np.testing.assert_array_equal(np.asarray(network.local(network.evaluate())), np.zeros(4))


def _rounded(numbers: Any) -> NDArray[np.float64]:
    return torch.from_numpy(np.asarray(numbers, np.float32)).bfloat16().double().numpy()


def test_a_device_rounds_rows_and_products() -> None:
    """As dense matrices say of the logits; the gradient is float32's within a hundredth."""
    graph = random_graph(40, 90, 11)
    (part,) = parts_of(graph)
    rough, fine = (
        _on_device(_config(part, kind, dropout=0), part, TorchDeviceTensors("cpu", is_bfloat16=kind == "bfloat16"))
        for kind in ("bfloat16", "float32")
    )
    first, last = rough.weights()
    matrix, rows = dense_a_hat(graph), graph.features
    hidden = _rounded(np.maximum(_rounded(_rounded(matrix @ _rounded(rows)) @ _rounded(first)), 0))
    expected = (matrix @ _rounded(hidden @ _rounded(last)))[part.owned]
    assert np.median(np.abs(rough.logits() - expected)) < 1e-6
    assert np.median(np.abs(fine.logits() - expected)) > 1e-4
    gradient, exact = (np.asarray(one.local(one.gradient(0)), np.float64) for one in (rough, fine))
    assert 0 < np.linalg.norm(gradient - exact) < 0.01 * np.linalg.norm(exact)


def _train(part: Part, tensors: Tensors, epochs: int, **options: Any) -> tuple[list[float], float]:
    """Return the losses, and the share of right answers on the test nodes."""
    network = _on_host(_config(part, hidden=16, **options), part, tensors)
    steps = network.steps(network.adam(0.01, 5e-4), Alone(), Meter())
    losses = [steps.take(epoch, stop=False)[0].loss for epoch in range(epochs)]
    return losses, float(network.evaluate()[2] / part.split_sizes[2])


@pytest.mark.system
def test_bfloat16_is_as_accurate_on_cora_and_alike_in_both_frameworks() -> None:
    """The loss to a hundredth, accuracy to 0.3 points in the mean of two seeds; `benchmarks/accuracy.py` has ten."""
    folder = Path(__file__).parents[2].parent / "shared" / "datasets"
    if not folder.is_dir():
        pytest.skip(f"no shared datasets: {folder}")
    (cora,) = parts_of(open_dataset("cora", folder, None, 0, normalize_features=True).load())
    options: dict[str, Any] = {"precision": "bfloat16", "bias": True}
    ours, others = (_train(cora, tensors, 20, **options)[0] for tensors in (TorchTensors(), MindSporeTensors()))
    np.testing.assert_allclose(others, ours, rtol=0, atol=0.01)
    assert ours != _train(cora, TorchTensors(), 20, precision="float32", bias=True)[0]
    rough, fine = (
        np.mean([_train(cora, TorchTensors(), 200, seed=seed, precision=precision)[1] for seed in range(2)])
        for precision in ("bfloat16", "float32")
    )
    assert abs(rough - fine) <= 0.003


def _by_torch(matrix: sp.csr_array, rows: Any, values: Any, *, has_csr: bool = True) -> Any:
    kept = torch_sparse.SparseMatrix(matrix.indptr, matrix.indices, matrix.data, matrix.shape, torch.device("cpu"))
    kept.csr = kept.csr if has_csr else None
    return kept.matmat(torch.from_numpy(rows), None if values is None else torch.from_numpy(values)).numpy()


def _by_mindspore(matrix: sp.csr_array, rows: Any, values: Any) -> Any:
    kept = mindspore_sparse.SparseMatrix(matrix.indptr, matrix.indices, matrix.data, matrix.shape)
    return kept.matmat(ms.Tensor(rows), None if values is None else ms.Tensor(values)).asnumpy()


@pytest.mark.parametrize("multiply", [_by_torch, partial(_by_torch, has_csr=False), _by_mindspore])
@given(shape=st.tuples(st.integers(1, 8), st.integers(1, 8)), width=st.integers(1, 3), density=st.floats(0, 1))
def test_sparse_product_is_scipys(
    multiply: Callable[..., Any], shape: tuple[int, int], width: int, density: float
) -> None:
    """For any shape and any emptiness, with the matrix's own values and with others."""
    draw = np.random.default_rng(1)
    matrix = sp.csr_array(draw.standard_normal(shape) * (draw.random(shape) < density))
    rows, values = draw.standard_normal((shape[1], width)), draw.standard_normal(matrix.nnz)
    other = sp.csr_array((values, matrix.indices, matrix.indptr), shape=shape)
    np.testing.assert_allclose(multiply(matrix, rows, None), matrix @ rows, rtol=0, atol=1e-12)
    np.testing.assert_allclose(multiply(matrix, rows, values), other @ rows, rtol=0, atol=1e-12)


#: Operations whose result's shape or value the host must know: on a GPU it would wait for them.
WAITING = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero", "bincount",
}  # fmt: skip


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the operations of a step, as a CUDA graph does: tensors by their address, numbers by their value.

    It stops at an operation that the host would have to wait for.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        is_sized = name != "repeat_interleave" or kwargs.get("output_size") is not None
        assert is_sized and name not in WAITING, f"{func} makes the host wait"  # noqa: PT018
        out = func(*args, **kwargs)
        self.operations.append((func, *tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs, out))))
        return out

    def replay(self) -> None:
        """Do the operations again; each result is written where it was."""
        for func, args, kwargs, out in self.operations:
            places = {_address(given) for given in tree_leaves((args, kwargs)) if isinstance(given, torch.Tensor)}
            for kept, made in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(kept, torch.Tensor) and _address(kept) not in places:
                    kept.copy_(made)


def _address(tensor: torch.Tensor) -> int:
    return (tensor.values() if tensor.layout == torch.sparse_csr else tensor).untyped_storage().data_ptr()


def _refuse(*_: Any) -> Any:
    raise AssertionError("a step reads a tensor on the host")


def _record(work: Work) -> Work:
    """Record as `record_cuda_graph` does; but recording does the step too, so the first replay does nothing."""
    with Recording() as recording, pytest.MonkeyPatch.context() as patched:
        for name in ("numpy", "tolist", "cpu", "__array__"):
            patched.setattr(torch.Tensor, name, _refuse)
        work()
    replays: Iterator[Work] = chain([lambda: None], repeat(recording.replay))

    def replay() -> None:
        next(replays)()

    return replay


@dense_and_sparse
@pytest.mark.parametrize("shape", ["product first", "aggregated once", "everything"])
def test_a_recorded_step_is_every_epochs(shape: str, *, sparse: bool) -> None:
    """Ten epochs, seven of them replayed: the host's losses to 1e-10, other masks each, no wait for the device."""
    (part,) = parts_of(random_graph(30, 70, 9, sparse=sparse))
    config, meter = _config(part, **SHAPES[shape]), Meter()
    host = _on_host(config, part, TorchTensors())
    host_steps = host.steps(host.adam(0.01, 5e-4), Alone(), Meter())
    expected = [host_steps.take(epoch, stop=False)[0].loss for epoch in range(10)]
    network = device_network(config, part, TorchDeviceTensors("cpu"), Alone(), meter)
    assert isinstance(network, TorchDeviceNetwork)
    steps = DeviceSteps(network, network.adam(0.01, 5e-4), Alone(), meter, _record)
    taken, numbers = [], []
    for epoch in range(10):
        taken += steps.take(epoch, stop=epoch == 6)
        assert len(taken) == (epoch + 1 if epoch < 4 else epoch)  # a replay's figures come one call later
        if epoch == 5:
            _record(lambda: numbers.append(network.evaluate()))  # between two replays, as a training does
    taken += steps.finish()
    np.testing.assert_allclose([figures.loss for figures in taken], expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(network.flat.numpy(), host.flat, rtol=0, atol=1e-10)
    assert [figures.is_stop_asked for figures in taken] == [epoch == 6 for epoch in range(10)]
    assert steps.finish() == []
