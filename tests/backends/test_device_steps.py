"""Steps that the host does not wait for, on the host's tensors: recorded, replayed, and equal to the host network."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Any
from unittest.mock import call, create_autospec

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from typing_extensions import override

from graphs_by_hand import make_graph
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.network import StepFigures
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.torch_network import DeviceSteps, TorchDeviceNetwork, Work, record_cuda_graph
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part
from unilaunch_torch.events import EventWatch

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


def _part(*, sparse: bool) -> Part:
    draw = np.random.default_rng(3)
    plain = make_graph(30, [(int(a), int(b)) for a, b in draw.integers(0, 30, (70, 2))])
    x = (draw.random((30, 9)) * (draw.random((30, 9)) < 0.5)).astype(np.float32)
    graph = Graph(plain.indptr, plain.indices, sp.csr_array(x) if sparse else x, np.arange(30) % 3, plain.split, 3)
    return next(split_parts(graph, order_nodes(graph, np.zeros(30, np.int64), 1)))


def _device(config: NetworkConfig, part: Part, meter: Meter) -> TorchDeviceNetwork:
    network = device_network(config, part, TorchDeviceTensors("cpu"), Alone(), meter)
    assert isinstance(network, TorchDeviceNetwork)
    return network


SHAPES: list[dict[str, Any]] = [
    {"hidden": 4, "bias": True},
    {"hidden": 4, "dropout": 0},
    {"hidden": 20, "layers": 3},
    {"conv": "sage", "layer_norm": True, "residual": True, "hidden": 5, "layers": 4},
]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("shape", SHAPES, ids=["product first", "aggregated once", "aggregation first", "everything"])
def test_a_recorded_step_is_every_epochs(
    shape: dict[str, Any], sparse: bool, record: Callable[[Work], Work]  # noqa: FBT001
) -> None:  # fmt: skip
    """Ten epochs, seven of them replayed: the host's losses to 1e-10, other masks each, no wait for the device."""
    part, spec = _part(sparse=sparse), GcnSpec.model_validate({"precision": "float64", **shape})
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
    part = _part(sparse=False)
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


def test_an_epoch_that_waits_is_noticed(record: Callable[[Work], Work]) -> None:
    """What the test above relies on."""
    rows = torch.ones(3)
    for work in (lambda: float(rows[0]), rows.nonzero, lambda: np.asarray(rows)):
        with pytest.raises(AssertionError):
            record(work)  # type: ignore[arg-type]


def test_a_cuda_graph_is_recorded_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda's own classes by their signatures: the work is queued once, while the graph is being captured."""
    graph = create_autospec(torch.cuda.CUDAGraph, instance=True)
    made, captured = create_autospec(torch.cuda.CUDAGraph, return_value=graph), create_autospec(torch.cuda.graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", made)
    monkeypatch.setattr(torch.cuda, "graph", captured)
    seen = []
    replay = record_cuda_graph(lambda: seen.append(list(captured.return_value.__enter__.mock_calls)))
    captured.assert_called_once_with(graph, capture_error_mode="thread_local")
    assert seen == [[call()]]
    graph.replay.assert_not_called()
    replay()
    graph.replay.assert_called_once_with()


def test_communication_is_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a graph the events are nodes of it, and are read again after each replay; else they are those of a step."""
    events = [create_autospec(torch.cuda.Event, instance=True) for _ in range(4)]
    made = create_autospec(torch.cuda.Event, side_effect=events)
    monkeypatch.setattr(torch.cuda, "Event", made)
    capturing = create_autospec(torch.cuda.is_current_stream_capturing, side_effect=[True, False])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", capturing)
    events[0].elapsed_time.return_value, events[2].elapsed_time.return_value = 20.0, 5.0
    watch = EventWatch()
    with watch.measure():  # of an evaluation
        pass
    with watch.step():
        for _ in range(2):
            with watch.measure():
                pass
    assert [bool(each.kwargs.get("external")) for each in made.call_args_list] == [True, True, False, False]
    assert [each.kwargs["enable_timing"] for each in made.call_args_list] == [True] * 4
    assert all(event.record.called for event in events)
    assert watch.read() == 0.0
    watch.finish_step()
    assert watch.read() == watch.read() == 0.025
    events[0].elapsed_time.assert_called_once_with(events[1])
    with watch.step():
        assert (watch.pairs, watch.read()) == ([], 0.025)


def test_the_host_waits_for_the_step_before_by_an_event(
    monkeypatch: pytest.MonkeyPatch, record: Callable[[Work], Work]
) -> None:
    """While the newest is under way; communication is measured when none is: of the first replay, and every 16th."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    real = torch.cuda.Event
    events: list[Any] = []

    def make(**options: bool) -> Any:
        events.append(create_autospec(real, instance=True))
        events[-1].elapsed_time.return_value = 4.0
        return events[-1]

    monkeypatch.setattr(torch.cuda, "Event", create_autospec(real, side_effect=make))
    spec = GcnSpec(precision="float64", hidden=4)
    config, meter = NetworkConfig.of(spec, plan_layers(spec, 9, 3), 2), Meter()
    network = _device(config, _part(sparse=False), meter)
    meter.watch = EventWatch()
    steps = DeviceSteps(network, network.adam(0.01, 0.0), Alone(), meter, record)
    steps.is_cuda = True
    taken = []
    for epoch in range(20):
        taken.append(len(steps.take(epoch, stop=False)))
        with meter.communication():  # as an evaluation waits for the halo of each layer
            network.evaluate()
    assert taken == [1, 1, 1, 1, 0, *[1] * 14, 2]
    done = [event for event in events if not event.elapsed_time.called and event.synchronize.called]
    assert len(done) == 20
    assert not steps.finish()
