"""The GCN on a device with torch: bias, ReLU and dropout are part of the pass that makes a layer's sums."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives
from unilaunch.json_value import JsonValue
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.convolution import EPSILON, normalise
from unilaunch_gcn.device import FusedAggregation, HaloEdges
from unilaunch_gcn.device_network import DeviceNetwork
from unilaunch_gcn.layers import Layer, count_decayed
from unilaunch_gcn.network import by_layer, views
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.objective import SPLITS, VALIDATION, Objective
from unilaunch_gcn.steps import Steps
from unilaunch_gcn.torch_adam import DeviceAdam
from unilaunch_gcn.torch_device_tensors import TorchDeviceTensors
from unilaunch_gcn.torch_dropout import DeviceMasks
from unilaunch_gcn.torch_epilogue import FinishedAggregation, Sums, apply, finish
from unilaunch_gcn.torch_features import TorchFeatures
from unilaunch_gcn.torch_steps import DeviceSteps, record_cuda_graph
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.operators.epilogue import Dropout, Epilogue
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.part import Part


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
    def _load_features(self, config: NetworkConfig, part: Part, aggregate: Aggregation) -> TorchFeatures:
        return TorchFeatures(config, part, aggregate, self.tensors, self.masks)

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
    def gradient(self, epoch: int) -> torch.Tensor:
        self.start_epoch(epoch)
        return self.queue_gradient()

    def start_epoch(self, epoch: int) -> None:
        """Bring to the device what `queue_gradient` reads of an epoch."""
        self.masks.start_epoch(epoch)
        self.epoch = epoch

    def queue_gradient(self) -> torch.Tensor:
        """Return what `gradient` does, of the epoch that has been started; reads nothing of the host."""
        gradients = self.gradients(views(self.flat, self.layers))
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
        self.epoch = None
        scores = self.tensors.scores(self._forward, views(self.flat, self.layers))
        targets = self.targets[self.split_rows[VALIDATION]].double()
        numbers = self.objective.evaluated(scores, self.split_rows, self.split_labels, targets, torch)
        return torch.stack([number.double() for number in numbers])

    @override
    def outputs(self, weights: Sequence[Any]) -> Iterator[torch.Tensor]:
        """Yield each layer's output, of all but the last with the dropout that the next layer begins with.

        The layers are those of `convolution.outputs`; what is one pass there is a step of an epilogue here.
        """
        drops = self._dropout_epoch is not None
        entering: torch.Tensor | None = None
        rows: torch.Tensor | None = None
        features = [self.tensors.operation(one) for one in self._first_layer()]
        for depth, (layer, own) in enumerate(zip(self.layers, by_layer(weights, self.layers), strict=True)):
            product, aggregation = self._product(layer, own["weight"], entering, features[0])
            plus, bias = self._plus(own, entering, features[1]), own.get("bias")
            if layer.is_last:
                yield finish(self._sums(aggregation, kind=self.weight_kind), product, plus, bias)
                return
            dropout = self.masks.of_layer(depth + 1) if drops else None
            if "norm_scale" in own or layer.is_residual or self.layers[depth + 1].is_residual:
                out = finish(self._sums(aggregation, kind=self.weight_kind), product, plus, bias)
                rows = self._activated(layer, own, out, rows)
                entering = finish(self._sums(None, dropout=dropout), rows)
            else:
                entering = finish(self._sums(aggregation, relu=True, dropout=dropout), product, plus, bias)
            yield entering

    def _product(
        self, layer: Layer, weight: torch.Tensor, entering: torch.Tensor | None, features: Any
    ) -> tuple[torch.Tensor, FinishedAggregation | None]:
        """Return H W or (A_hat H) W, and what is still to be applied to it: A_hat, or nothing."""
        aggregation = self.aggregation if layer.order == "product first" else None
        if entering is None:
            return features(weight), aggregation
        if aggregation is None:
            entering = finish(self._sums(self.aggregation), entering)
        return entering @ weight.to(self.kind), aggregation

    def _plus(self, own: Mapping[str, Any], entering: torch.Tensor | None, features: Any) -> torch.Tensor | None:
        if "self_weight" not in own:
            return None
        weight: torch.Tensor = own["self_weight"]
        product: torch.Tensor = features(weight) if entering is None else entering @ weight.to(self.kind)
        return product

    def _activated(
        self, layer: Layer, own: Mapping[str, Any], out: torch.Tensor, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the output of a layer with a norm or a residual, before dropout."""
        if "norm_scale" in own:
            out = normalise(out, EPSILON, self.tensors) * own["norm_scale"] + own["norm_shift"]
        out = finish(self._sums(None, relu=True), out)
        return out + rows if layer.is_residual and rows is not None else out

    def _sums(
        self, aggregation: FinishedAggregation | None, *, relu: bool = False, dropout: Dropout | None = None,
        kind: torch.dtype | None = None,
    ) -> Sums:  # fmt: skip
        return Sums(self.tensors.passes, aggregation, Epilogue(relu=relu, dropout=dropout), kind or self.kind)


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
