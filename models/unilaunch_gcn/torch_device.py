"""torch on a device, as the GCN asks for it: with Triton's kernels on a GPU, or torch's operations.

First what a layer computes: masks, the epilogue of sums, features, A_hat. Then the steps of a training, which a GPU
records; then the network.
"""

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.linear import LinearOperator
from unilaunch.json_value import JsonValue
from unilaunch_gcn.aggregation import Aggregation, DiagonalScaling
from unilaunch_gcn.device import (
    DeviceNetwork,
    DeviceTensors,
    Dropout,
    Epilogue,
    HaloEdges,
    Masks,
    SparseFeatures,
)
from unilaunch_gcn.layers import NetworkConfig, count_decayed
from unilaunch_gcn.network import StepFigures, Steps
from unilaunch_gcn.objective import SPLITS, VALIDATION, Objective
from unilaunch_gcn.tensors import Operation
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.arrays import Floats, FloatType
from unilaunch_graph.exchange.meter import HostWatch, Meter, Watch
from unilaunch_graph.operators.torch_masks import column_keys, kept, row_keys
from unilaunch_graph.optimizer import BETA1, BETA2, Adam
from unilaunch_graph.partition.part import Part
from unilaunch_torch.events import EventWatch
from unilaunch_torch.linear import apply
from unilaunch_torch.sparse import CsrArrays, KernelMatrix, SparseMatrix


class DeviceMasks(Masks):
    """Dropout on a device. Nothing is copied from the host within an epoch but the epoch's keys, before it begins.

    Args:
        config: What is trained.
        nodes: Global ids of the owned nodes, on the device. (num_owned,) int64
    """

    def __init__(self, config: NetworkConfig, nodes: torch.Tensor) -> None:
        super().__init__(config, nodes)
        shape, pinned = (len(config.layers), 2), nodes.device.type == "cuda"
        self.keys: torch.Tensor = torch.zeros(shape, dtype=torch.int64, device=nodes.device)
        # Two, in turn: the copy of one epoch may still be queued while the next epoch's keys are written.
        self.staged = [torch.zeros(shape, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]

    @override
    def start_epoch(self, epoch: int) -> None:
        """Queue the copy of an epoch's keys to the device."""
        staged = self.staged[epoch % 2]
        staged.numpy()[:] = self._keys(epoch)
        self.keys.copy_(staged, non_blocking=True)


def _hash_places(dropout: Dropout, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `dropout.row_keys` and `dropout.column_keys`."""
    columns = torch.arange(width, device=dropout.nodes.device)
    return row_keys(dropout.nodes, dropout.keys), column_keys(columns, dropout.keys)


class TorchPasses:
    """An epilogue by itself, and its derivative: what `triton_kernels` does, where Triton is not."""

    @staticmethod
    def apply(epilogue: Epilogue, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return *out* after the epilogue of *rows* was written into it. Both (rows, width)."""
        for added in (epilogue.plus, epilogue.bias):
            rows = rows if added is None else rows + added
        if epilogue.relu:
            rows = torch.relu(rows)
        return out.copy_(_dropped(epilogue.dropout, rows))

    @staticmethod
    def gradient(epilogue: Epilogue, after: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
        """Return the gradient by what an epilogue was given, from the gradient by what it returned.

        Args:
            epilogue: The epilogue.
            after: What it returned; needed if it has a ReLU. (rows, width)
            rows: The gradient. (rows, width)
        """
        if epilogue.relu and after is not None:  # positive only where neither ReLU nor dropout made it 0
            scale = epilogue.dropout.scale if epilogue.dropout else 1.0
            return torch.where(after > 0, rows * scale, 0)
        return _dropped(epilogue.dropout, rows)


def _dropped(dropout: Dropout | None, rows: torch.Tensor) -> torch.Tensor:
    if not dropout:
        return rows
    of_rows, of_columns = _hash_places(dropout, rows.shape[1])
    mask: torch.Tensor = kept(of_rows[:, None] ^ of_columns, dropout.probability, rows.dtype)
    return rows * mask


class _Finished(torch.autograd.Function):
    """Sums with their epilogue; only the result is kept for the derivative, and only where there is a ReLU."""

    @staticmethod
    @override
    def forward(
        ctx: Any, how: tuple[Any, Epilogue, Any, torch.dtype], rows: torch.Tensor, plus: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        passes, epilogue, aggregation, kind = how
        epilogue, rows = epilogue._replace(plus=plus, bias=bias), rows.contiguous()
        out: torch.Tensor = torch.empty_like(rows, dtype=kind)
        if isinstance(aggregation, FusedAggregation):
            out = aggregation.finished(rows, epilogue, out)
        else:
            out = passes.apply(epilogue, aggregation.matmat(rows) if aggregation else rows, out)
        ctx.how, ctx.kinds = how, (rows.dtype, plus is not None and plus.dtype, bias is not None and bias.dtype)
        ctx.save_for_backward(*((out,) if epilogue.relu else ()))
        return out

    @staticmethod
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (passes, epilogue, aggregation, _), (rows, plus, bias) = ctx.how, ctx.kinds
        before = passes.gradient(epilogue, *(ctx.saved_tensors or (None,)), grad.contiguous())
        by_bias = before.sum(0, dtype=bias) if bias else None
        by_plus = before.to(plus) if plus else None
        before = before.to(rows)
        return None, aggregation.rmatmat(before).to(rows) if aggregation else before, by_plus, by_bias


class TorchDeviceTensors(TorchTensors, DeviceTensors):
    """torch on a device: the weights are kept there too.

    Attributes:
        kernels: `triton_kernels`; None: torch's own operations do the same.

    Args:
        device: The device: "cuda:0".
        is_bfloat16: Rows and products are bfloat16, sums and weights float32.
        is_fused: Use Triton's kernels; None: on a GPU, if Triton is installed.
    """

    numeric = torch

    def __init__(self, device: str, *, is_bfloat16: bool = False, is_fused: bool | None = None) -> None:
        super().__init__(is_bfloat16=is_bfloat16)
        self.device = torch.device(device)
        # One type for the sum over ranks: HCCL has no float64.
        self.summed = np.dtype("float32" if self.device.type == "npu" else "float64")
        if is_fused is None:
            is_fused = self.device.type == "cuda" and find_spec("triton") is not None
        self.kernels = _triton_kernels(self.device) if is_fused else None

    @override
    def agree(self, collectives: Collectives) -> None:
        without = torch.tensor([float(self.kernels is None)], device=self.device)
        collectives.all_reduce(without)
        if without.item():
            self.kernels = None

    @override
    def tensor(self, array: Any) -> torch.Tensor:
        return array if isinstance(array, torch.Tensor) else torch.as_tensor(np.array(array), device=self.device)

    @override
    def array(self, tensor: torch.Tensor) -> Floats:
        return super().array(tensor.float() if tensor.dtype == torch.bfloat16 else tensor)

    @override
    def rows(self, array: Any) -> torch.Tensor:
        return self.rounded(torch.from_numpy(np.array(array, order="C"))).to(self.device)  # rounded on the host

    @override
    def rounded(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.bfloat16() if self.is_bfloat16 else rows

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return partial(apply, operator)

    @override
    def product(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rows @ weight.to(rows.dtype)

    @override
    def finish(
        self, rows: torch.Tensor, epilogue: Epilogue, aggregation: Any = None, *, is_wide: bool = False
    ) -> torch.Tensor:
        kind = rows.dtype if not self.is_bfloat16 else torch.float32 if is_wide else torch.bfloat16
        how = self.kernels or TorchPasses, epilogue._replace(plus=None, bias=None), aggregation, kind
        out: torch.Tensor = _Finished.apply(how, rows, epilogue.plus, epilogue.bias)  # type: ignore[no-untyped-call]
        return out

    @override
    def entry_mask(
        self, rows: NDArray[Any], columns: NDArray[Any], width: int, dtype: FloatType
    ) -> Callable[[Dropout], torch.Tensor]:
        row, column = (self.tensor(places.astype(np.int64)) for places in (rows, columns))
        kind: torch.dtype = getattr(torch, dtype.name)

        def mask(dropout: Dropout) -> torch.Tensor:
            of_rows, of_columns = _hash_places(dropout, width)
            return kept(of_rows[row] ^ of_columns[column], dropout.probability, kind)

        return mask

    @override
    def empty(self, shape: tuple[int, int], like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(shape)

    @override
    def take(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return rows.index_select(0, places)

    @override
    def sparse(
        self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]
    ) -> SparseMatrix | KernelMatrix:
        if self.kernels is None:
            return SparseMatrix(indptr, indices, values, shape, self.device)
        return KernelMatrix(CsrArrays(indptr, indices, values, shape, self.device), self.kernels.multiply)

    @override
    def sparse_features(self, features: sp.csr_array) -> SparseFeatures:
        return (FusedSparseFeatures if self.kernels else SparseFeatures)(features, self)

    @override
    def buffer(self, weights: Floats) -> torch.Tensor:
        return self.tensor(weights)

    @override
    def message(self, value: torch.Tensor, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = (value.reshape(1), value.new_zeros(1), *(gradient.reshape(-1) for gradient in gradients))
        return torch.cat(parts).to(getattr(torch, self.summed.name))

    @override
    def local(self, message: torch.Tensor) -> torch.Tensor:
        return message

    @override
    def watch(self) -> Watch:
        return EventWatch() if self.device.type == "cuda" else HostWatch()

    @override
    def masks(self, config: NetworkConfig, nodes: NDArray[np.int64]) -> DeviceMasks:
        return DeviceMasks(config, self.tensor(nodes))

    @override
    def network(
        self, config: NetworkConfig, part: Part, objective: Objective, aggregate: Aggregation
    ) -> DeviceNetwork:  # fmt: skip
        if self.device.type == "npu":  # no float64, in which the class below steps and counts
            return super().network(config, part, objective, aggregate)
        if self.kernels and isinstance(aggregate.edges, HaloEdges):
            kind = getattr(torch, config.dtype.name)
            aggregate = FusedAggregation(aggregate.edges, aggregate.scaling, self.kernels.multiply, kind)
        return TorchDeviceNetwork(config, part, objective, self, aggregate)


def _triton_kernels(device: torch.device) -> ModuleType | None:
    """Return `triton_kernels`; None, with a warning, if Triton cannot compile and start one of them here."""
    try:
        from unilaunch_gcn import triton_kernels

        triton_kernels.apply(Epilogue(relu=True), *torch.zeros(2, 1, 1, device=device))
    except Exception as error:  # noqa: BLE001  (Triton's own, those of compilers that it starts, an assertion on libcuda)
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        warnings.warn(
            f"Triton compiles no kernel here, so torch's own operations train, which is slower: {reason}: install a C "
            "compiler and Python's headers (gcc, python3-dev)",
            stacklevel=3,
        )
        return None
    return triton_kernels


class FusedSparseFeatures(SparseFeatures):
    """X, sparse, whose entries a kernel drops out while it multiplies."""

    tensors: TorchDeviceTensors

    @override
    def make_masks(self, features: sp.csr_array, transposed: sp.csr_array) -> None:
        """Keep nothing: 32 bytes for each entry."""

    @override
    def matmat(self, rows: torch.Tensor, dropout: Dropout | None) -> torch.Tensor:
        rows = self.tensors.rounded(rows).contiguous()
        return self._product(self.matrix, rows, ("rows", dropout))

    @override
    def rmatmat(self, rows: torch.Tensor, dropout: Dropout | None) -> torch.Tensor:
        return self._product(self.transposed, rows.contiguous(), ("columns", dropout))

    def _product(self, matrix: KernelMatrix, rows: torch.Tensor, entries: tuple[str, Dropout | None]) -> torch.Tensor:
        out = rows.new_empty(matrix.shape[0], rows.shape[1])
        return matrix.multiply(matrix, rows, out, entries=entries if entries[1] else None)


class _Direction(NamedTuple):
    """A_hat, or its transpose.

    Attributes:
        scaling: The normalisation.
        sent: The right factors of the rows that are sent; None: each is 1. (rows sent, 1)
    """

    scaling: DiagonalScaling
    sent: Any


class FusedAggregation(Aggregation):
    """A_hat of ranks that divide nodes, in one pass over the edges: scaling, loops and epilogue are part of it.

    Args:
        edges: W; its matrices are `multiply`'s.
        scaling: The normalisation, in the type of the sums.
        multiply: `triton_kernels.multiply`.
        kind: Type of the sums.
    """

    def __init__(
        self, edges: HaloEdges, scaling: DiagonalScaling, multiply: Callable[..., Any], kind: torch.dtype
    ) -> None:
        super().__init__(edges, scaling)
        self.halo, self.owned, self.remote = edges.halo, edges.owned, edges.remote
        self.multiply, self.kind = multiply, kind
        self.forward, self.backward = (
            _Direction(side, None if side.right is None else self.halo.sent(side.right))
            for side in (scaling, scaling.transposed)
        )

    def finished(self, rows: Any, epilogue: Epilogue, out: Any) -> Any:
        """Return *out* after epilogue(A_hat @ rows) was written into it; all ranks must call it. (num_owned, width)"""
        return self._product(rows, self.forward, epilogue, out)

    @override
    def matmat(self, rows: Any) -> Any:
        return self._product(rows, self.forward, Epilogue(), rows.new_empty(rows.shape))

    @override
    def rmatmat(self, rows: Any) -> Any:
        return self._product(rows, self.backward, Epilogue(), rows.new_empty(rows.shape))

    def _product(self, rows: Any, direction: _Direction, epilogue: Epilogue, out: Any) -> Any:
        scaling = direction.scaling
        exchange, received = self.halo.begin(rows, direction.sent)
        if exchange is None:
            return self.multiply(self.owned, rows, out, scaling=scaling, epilogue=epilogue)
        sums = rows.new_empty(rows.shape, dtype=self.kind)
        self.multiply(self.owned, rows, sums, scaling=DiagonalScaling(None, scaling.right, scaling.loops))
        self.halo.wait(exchange)
        rest = DiagonalScaling(scaling.left, None, None)
        return self.multiply(self.remote, received, out, scaling=rest, partial=sums, epilogue=epilogue)


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
        self.network.masks.start_epoch(epoch)
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
    """The GCN of one rank on a device, with what only torch does there: Adam, recorded steps, evaluations."""

    tensors: TorchDeviceTensors

    @override
    def adam(self, lr: float, decay: float) -> Adam:
        return DeviceAdam(self.flat, lr, decay, count_decayed(self.layers), self.tensors.kernels)

    @override
    def steps(self, adam: Adam, collectives: Collectives, meter: Meter) -> Steps:
        is_recorded = self.flat.device.type == "cuda" and self.tensors.kernels is not None
        return DeviceSteps(self, adam, collectives, meter, record_cuda_graph if is_recorded else None)

    @override
    def figures(self) -> dict[str, JsonValue]:
        if self.flat.device.type != "cuda":
            return {}
        return {"peak_device_memory_bytes": torch.cuda.max_memory_reserved(self.flat.device)}  # the CUDA graph's too

    @override
    def evaluate(self) -> torch.Tensor:
        """As the host's, without the host: it would copy all scores, and count with one thread."""
        scores = self._evaluated()
        targets = self.targets[self.split_rows[VALIDATION]].double()
        numbers = self.objective.evaluated(scores, self.split_rows, self.split_labels, targets, torch)
        return torch.stack([number.double() for number in numbers])

    @cached_property
    def split_rows(self) -> list[torch.Tensor]:
        """The owned nodes of each split."""
        return [self.tensors.tensor(np.flatnonzero(self.part.split == use)) for use in SPLITS.values()]

    @cached_property
    def split_labels(self) -> list[torch.Tensor]:
        """Their labels."""
        labels = self.tensors.tensor(np.asarray(self.part.labels))
        return [labels[rows] for rows in self.split_rows]
