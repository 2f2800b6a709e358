"""Steps that the host does not wait for, on the host's tensors: recorded, replayed, and equal to the host network."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from typing_extensions import override

from graphs_by_hand import parts_of, random_graph
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.network import StepFigures
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import DeviceSteps, TorchDeviceNetwork, TorchDeviceTensors, Work
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.part import Part

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
        assert name not in WAITING, f"{func} makes the host wait"
        assert name != "repeat_interleave" or kwargs.get("output_size") is not None, f"{func} makes the host wait"
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


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], Work]:
    """Record as `record_cuda_graph` does; but recording does the step too, so the first replay does nothing."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a step reads a tensor on the host")

    def record(work: Work) -> Work:
        recording = Recording()
        with recording, monkeypatch.context() as patched:
            for name in ("numpy", "tolist", "cpu", "__array__"):
                patched.setattr(torch.Tensor, name, refuse)
            work()
        replays: Iterator[Work] = chain([lambda: None], repeat(recording.replay))

        def replay() -> None:
            next(replays)()

        return replay

    return record


def _device(config: NetworkConfig, part: Part, meter: Meter) -> TorchDeviceNetwork:
    network = device_network(config, part, TorchDeviceTensors("cpu"), Alone(), meter)
    assert isinstance(network, TorchDeviceNetwork)
    return network


SHAPES: list[dict[str, Any]] = [
    {"hidden": 4, "bias": True},
    {"hidden": 4, "dropout": 0},
    {"conv": "sage", "layer_norm": True, "residual": True, "hidden": 5, "layers": 4},
]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("shape", SHAPES, ids=["product first", "aggregated once", "everything"])
def test_a_recorded_step_is_every_epochs(
    shape: dict[str, Any], sparse: bool, record: Callable[[Work], Work]  # noqa: FBT001
) -> None:  # fmt: skip
    """Ten epochs, seven of them replayed: the host's losses to 1e-10, other masks each, no wait for the device."""
    (part,) = parts_of(random_graph(30, 70, 9, sparse=sparse))
    spec = GcnSpec.model_validate({"precision": "float64", **shape})
    config = NetworkConfig.of(spec, plan_layers(spec, 9, 3), 2)
    host = HostNetwork(host_problem(Alone(), 1, config, part, Meter()), TorchTensors())
    host_steps = host.steps(host.adam(0.01, 5e-4), Alone(), Meter())
    expected = [host_steps.take(epoch, stop=False)[0].loss for epoch in range(10)]
    meter = Meter()
    network = _device(config, part, meter)
    steps = DeviceSteps(network, network.adam(0.01, 5e-4), Alone(), meter, record)
    taken: list[StepFigures] = []
    for epoch in range(10):
        taken += steps.take(epoch, stop=epoch == 6)
        assert len(taken) == (epoch + 1 if epoch < 4 else epoch)  # a replay's figures come one call later
        if epoch == 5:
            network.evaluate()  # between two replays, as a training does
    taken += steps.finish()
    np.testing.assert_allclose([figures.loss for figures in taken], expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(network.flat.numpy(), host.flat, rtol=0, atol=1e-10)
    assert [figures.is_stop_asked for figures in taken] == [epoch == 6 for epoch in range(10)]
    assert steps.finish() == []


@pytest.mark.parametrize("task", ["classes", "multilabel", "regression"])
def test_an_evaluation_stays_on_the_device(task: str, record: Callable[[Work], Work]) -> None:
    """Its numbers are the host's, and only they are read: it copied all scores, and counted with one thread."""
    (part,) = parts_of(random_graph(30, 70, 9))
    draw = np.random.default_rng(5)
    if task == "multilabel":
        part = replace(part, labels=draw.integers(0, 2, (30, 3)).astype(np.uint8))
    elif task == "regression":
        part = replace(part, labels=draw.random((30, 3)).astype(np.float32))
    spec = GcnSpec(precision="float64", hidden=4)
    config = NetworkConfig.of(spec, plan_layers(spec, 9, 3), 2)
    network = _device(config, part, Meter())
    numbers: list[torch.Tensor] = []
    record(lambda: numbers.append(network.evaluate()))
    np.testing.assert_allclose(numbers[0].numpy(), network.objective.evaluate(network.logits(), part), rtol=1e-12)
    network.flat[:] = torch.nan
    assert network.evaluate()[-1].isnan()
