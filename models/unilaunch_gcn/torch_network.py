"""The GCN on a device with torch: bias, ReLU and dropout are part of the pass that makes a layer's sums."""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives
from unilaunch.json_value import JsonValue
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.device import DeviceNetwork, FusedAggregation, HaloEdges
from unilaunch_gcn.epilogue import Epilogue
from unilaunch_gcn.layers import Mode, NetworkConfig, TrainingEpoch, count_decayed
from unilaunch_gcn.network import Pass, StepFigures, Steps
from unilaunch_gcn.objective import SPLITS, VALIDATION, Objective
from unilaunch_gcn.torch_device import DeviceMasks, TorchDeviceTensors, TorchFeatures
from unilaunch_gcn.torch_epilogue import FinishedAggregation, Sums, apply, finish
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.optimizer import BETA1, BETA2, Adam
from unilaunch_graph.partition.part import Part
from unilaunch_torch.events import EventWatch


class DeviceAdam(Adam):
    """`Adam` on a tensor of a device, in one kernel where there is one.

    Attributes:
        steps: The number of steps that were taken. () float64

    Args:
        weights: All weights, changed in place. (num_weights,)
        lr: Step size.
        decay: L2 factor.
        decayed: How many weights, from the front, the L2 factor is for.
        kernels: `triton_kernels`; None: torch's operations.
    """

    def __init__(
        self, weights: torch.Tensor, lr: float, decay: float, decayed: int, kernels: ModuleType | None
    ) -> None:
        super().__init__(weights, torch.zeros_like(weights), lr, decay, decayed)
        self.steps = torch.zeros((), dtype=torch.float64, device=weights.device)
        self.betas = torch.as_tensor([BETA1, BETA2], dtype=torch.float64, device=weights.device)
        self.kernels = kernels

    @override
    def resume(self, steps: int) -> None:
        self.steps.fill_(steps)

    @override
    def step(self, gradient: torch.Tensor) -> None:
        if not self.kernels:
            super().step(gradient)
            return
        self.steps += 1
        moments, options = (self.first, self.second), (self.lr, self.decay, self.decayed)
        self.kernels.adam_step(self.weights, moments, gradient, self.betas**self.steps, options)


#: Queues the work of a step; and what makes of it a function that queues the same work again.
Work = Callable[[], None]
Record = Callable[[Work], Work]
#: Steps that run before one is recorded: kernels are compiled, and NCCL connects.
WARM_UP = 3
#: Of so many recorded steps one is waited for, so that its communication is measured: the next records its events anew.
_MEASURED = 16


class Queued(NamedTuple):
    """A step in flight.

    Attributes:
        figures: The loss and whether a stop was asked for, where the host will find them. (2,)
        done: Reached when they are there; None on a device whose copies block the host.
        communication: Seconds, as far as they are known when the step is queued.
        received: Bytes of halo rows that arrive.
    """

    figures: torch.Tensor
    done: torch.cuda.Event | None
    communication: float
    received: int


class DeviceSteps(Steps):
    """Steps on a device; the figures of a recorded step come one call later.

    Args:
        network: The network.
        adam: The optimiser of its weights.
        collectives: The ranks' collectives on tensors of the device.
        meter: Counts bytes and waiting.
        record: Records a step; None: none is recorded.
    """

    network: "TorchDeviceNetwork"

    def __init__(
        self, network: "TorchDeviceNetwork", adam: Adam, collectives: Collectives, meter: Meter, record: Record | None
    ) -> None:
        super().__init__(network, adam, collectives, meter)
        self.record, self.received = record, 0
        self.replay: Work | None = None
        self.is_cuda = network.flat.device.type == "cuda"
        kind: Any = {"dtype": torch.float64, "pin_memory": self.is_cuda}
        # In turn: the host writes one, and reads one, while the device may still use the other.
        self.stops, self.read = ([torch.zeros(size, **kind) for _ in range(2)] for size in (1, 2))
        self.stop = torch.zeros(1, dtype=torch.float64, device=network.flat.device)
        self.figures = torch.zeros(2, dtype=torch.float64, device=network.flat.device)
        self.queued: deque[Queued] = deque()
        self.count = 0

    @override
    def take(self, epoch: int, *, stop: bool) -> list[StepFigures]:
        turn = self.count % 2
        self.network.start_epoch(epoch)
        self.stops[turn].fill_(float(stop))
        self.stop.copy_(self.stops[turn], non_blocking=True)
        if self.record and not self.replay and self.count >= WARM_UP:
            self.replay, self.received = self.record(self._work), self.meter.bytes
        (self.replay or self._work)()
        seconds, received = self.meter.read()  # a replay counts no bytes
        self.read[turn].copy_(self.figures, non_blocking=True)
        done = torch.cuda.Event() if self.is_cuda else None  # type: ignore[no-untyped-call]
        if done:
            done.record()
        self.queued.append(Queued(self.read[turn], done, seconds, received or self.received))
        left = 1 if self.replay and (self.count - WARM_UP) % _MEASURED else 0
        self.count += 1
        return self._wait(left)

    @override
    def finish(self) -> list[StepFigures]:
        return self._wait(0)

    def _work(self) -> None:
        """Queue a step. It reads nothing of the host, so that it can be recorded."""
        with self.meter.watch.step() if isinstance(self.meter.watch, EventWatch) else nullcontext():
            gradient = self.network.queue_gradient()
            gradient[1:2].copy_(self.stop)
            with self.meter.communication("all-reduce"):
                self.collectives.all_reduce(gradient)
        self.figures.copy_(gradient[:2])
        self.adam.step(gradient[2:])

    def _wait(self, left: int) -> list[StepFigures]:
        """Return the figures of all steps but the newest *left*."""
        found = []
        while len(self.queued) > left:
            figures, done, seconds, received = self.queued.popleft()
            if done:
                done.synchronize()
                if not self.queued and isinstance(self.meter.watch, EventWatch):
                    self.meter.watch.finish_step()
                seconds = self.meter.watch.read()
            loss, is_stop_asked = figures.tolist()
            found.append(StepFigures(loss, is_stop_asked > 0, seconds, received))
        return found


def record_cuda_graph(work: Work) -> Work:
    """Record what *work* queues as a CUDA graph, and return its replay.

    NCCL's own thread may call CUDA meanwhile, hence the mode. torch waits and frees its cache before it records.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay


class TorchDeviceNetwork(DeviceNetwork):
    """The GCN of one rank on a device.

    Args:
        config: What is trained.
        part: This rank's part.
        objective: The loss and its metrics.
        tensors: torch on the device.
        aggregate: A_hat over all parts, on the device.
    """

    tensors: TorchDeviceTensors
    masks: DeviceMasks
    first_layer: TorchFeatures

    def __init__(
        self, config: NetworkConfig, part: Part, objective: Objective, tensors: TorchDeviceTensors,
        aggregate: Aggregation,
    ) -> None:  # fmt: skip
        self.kind, self.weight_kind = tensors.kind(config.dtype), getattr(torch, config.dtype.name)
        self.aggregation: FinishedAggregation = self._fused(aggregate, tensors)
        super().__init__(config, part, objective, tensors, cast("Aggregation", self.aggregation))
        nodes = [np.flatnonzero(part.split == use) for use in SPLITS.values()]
        self.split_rows = [tensors.tensor(rows) for rows in nodes]
        self.split_labels = [tensors.tensor(np.asarray(part.labels)[rows]) for rows in nodes]

    def _fused(self, aggregate: Aggregation, tensors: TorchDeviceTensors) -> FinishedAggregation:
        """Return A_hat with an epilogue: in one pass where there is a kernel, and ranks divide nodes."""
        edges = aggregate.edges
        if tensors.kernels is None or not isinstance(edges, HaloEdges):
            return _Unfused(aggregate, self.weight_kind)

        def empty_sums(shape: tuple[int, ...]) -> torch.Tensor:
            return torch.empty(shape, dtype=self.weight_kind, device=tensors.device)

        return FusedAggregation(edges, aggregate.scaling, tensors.kernels.multiply, empty_sums)

    @override
    def _load_features(self, aggregate: Aggregation) -> TorchFeatures:
        return TorchFeatures(self.config, self.part, aggregate, self.tensors, self.masks)

    @override
    def adam(self, lr: float, decay: float) -> Adam:
        if self.flat.device.type == "npu":
            return super().adam(lr, decay)
        return DeviceAdam(self.flat, lr, decay, count_decayed(self.layers), self.tensors.kernels)

    @override
    def steps(self, adam: Adam, collectives: Collectives, meter: Meter) -> Steps:
        if self.flat.device.type == "npu":
            return super().steps(adam, collectives, meter)
        is_recorded = self.flat.device.type == "cuda" and self.tensors.kernels is not None
        return DeviceSteps(self, adam, collectives, meter, record_cuda_graph if is_recorded else None)

    @override
    def figures(self) -> dict[str, JsonValue]:
        if self.flat.device.type != "cuda":
            return {}
        return {"peak_device_memory_bytes": torch.cuda.max_memory_reserved(self.flat.device)}  # the CUDA graph's too

    @override
    def forward(self, mode: Mode) -> "TorchPass":
        return TorchPass(self, drops=self.config.drops(mode))

    @override
    def gradient(self, epoch: int) -> torch.Tensor:
        self.start_epoch(epoch)
        return self.queue_gradient()

    def start_epoch(self, epoch: int) -> None:
        """Bring to the device what `queue_gradient` reads of an epoch."""
        self.masks.start_epoch(epoch)

    def queue_gradient(self) -> torch.Tensor:
        """Return what `gradient` does, of the epoch that has been started; reads nothing of the host."""
        gradients = self._gradients(_STARTED, self._gradient_of)
        if not self.part.num_owned:
            kind = getattr(torch, self.tensors.summed.name)
            return torch.zeros(2 + len(self.flat), dtype=kind, device=self.flat.device)
        return self.tensors.message(self.value, gradients)

    @override
    def evaluate(self) -> torch.Tensor:
        """As the host's, without the host: it would copy all scores, and count with one thread."""
        if self.flat.device.type == "npu":
            evaluation: torch.Tensor = super().evaluate()
            return evaluation
        scores = self._evaluated()
        targets = self.targets[self.split_rows[VALIDATION]].double()
        numbers = self.objective.evaluated(scores, self.split_rows, self.split_labels, targets, torch)
        return torch.stack([number.double() for number in numbers])


#: The epoch that has been started: its number is in the masks' keys, on the device.
_STARTED = TrainingEpoch(0)


class TorchPass(Pass):
    """A forward pass with torch on a device: what follows a layer's sums is their epilogue, in the same pass over them.

    Args:
        network: The network.
        drops: With the dropout of the epoch that has been started.
    """

    def __init__(self, network: TorchDeviceNetwork, *, drops: bool) -> None:
        features = network.first_layer.operators(drops=drops)
        super().__init__(network.layers, features, network.tensors, network.epsilon)
        self.network, self.drops, self.kind = network, drops, network.kind

    @override
    def aggregate(self, depth: int, rows: torch.Tensor) -> torch.Tensor:
        return finish(self._ended(self.network.aggregation), rows)

    @override
    def product(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.network.tensors.product(rows, weight)

    @override
    def activated(self, depth: int, rows: torch.Tensor) -> torch.Tensor:
        return finish(self._ended(None, relu=True), rows)

    @override
    def dropped(self, depth: int, rows: torch.Tensor) -> torch.Tensor:
        return finish(self._ended(None, into=depth), rows)

    @override
    def entering(self, depth: int, rows: torch.Tensor) -> torch.Tensor:
        return finish(self._ended(None, relu=True, into=depth), rows)

    @override
    def sums(self, depth: int, own: Mapping[str, Any], entering: Any) -> torch.Tensor:
        product, plus, aggregation = self._terms(depth, own, entering)
        return finish(self._ended(aggregation, kind=self.network.weight_kind), product, plus, own.get("bias"))

    @override
    def entering_sums(self, depth: int, own: Mapping[str, Any], entering: Any) -> torch.Tensor:
        product, plus, aggregation = self._terms(depth, own, entering)
        return finish(self._ended(aggregation, relu=True, into=depth + 1), product, plus, own.get("bias"))

    def _terms(
        self, depth: int, own: Mapping[str, Any], entering: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, FinishedAggregation | None]:
        """Return H W or (A_hat H) W, H W_self, and what is still to be applied to the first: A_hat, or nothing."""
        aggregation = self.network.aggregation if self.layers[depth].order == "product first" else None
        if entering is None:
            plus = self.own(own["self_weight"]) if "self_weight" in own else None
            return self.weighted(own["weight"]), plus, aggregation
        rows = entering if aggregation else self.aggregate(depth, entering)
        plus = self.product(entering, own["self_weight"]) if "self_weight" in own else None
        return self.product(rows, own["weight"]), plus, aggregation

    def _ended(
        self, aggregation: FinishedAggregation | None, *, relu: bool = False, into: int | None = None,
        kind: torch.dtype | None = None,
    ) -> Sums:  # fmt: skip
        """Return how sums end: by ReLU, by the dropout of the rows that enter layer *into*, in a type."""
        dropout = self.network.masks.of_layer(into) if self.drops and into is not None else None
        return Sums(self.network.tensors.passes, aggregation, Epilogue(relu=relu, dropout=dropout), kind or self.kind)


class _Unfused:
    """A_hat in one pass and an epilogue in others; sums have the type of the weights."""

    def __init__(self, aggregate: Aggregation, kind: torch.dtype) -> None:
        self.aggregate, self.kind, self.edges = aggregate, kind, aggregate.edges

    def finished(self, rows: torch.Tensor, epilogue: Epilogue, out: torch.Tensor) -> torch.Tensor:
        """Return *out* after epilogue(A_hat @ rows) was written into it."""
        return apply(epilogue, self.aggregate.matmat(rows.to(self.kind)), out)

    def matmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return A_hat @ rows."""
        product: torch.Tensor = self.aggregate.matmat(rows.to(self.kind))
        return product.to(rows.dtype)

    def rmatmat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return A_hat.T @ rows."""
        product: torch.Tensor = self.aggregate.rmatmat(rows.to(self.kind))
        return product.to(rows.dtype)
