"""Steps on a device that the host does not wait for: the device works on one while the host queues the next.

On a GPU with Triton's kernels a step is recorded once, as a CUDA graph, and replayed. Never run on a GPU; the tests
record a step's operations on the host, replay those, and compare.
"""

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives
from unilaunch_gcn.steps import HasGradient, StepFigures, Steps
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.optimizer import Adam
from unilaunch_torch.events import EventWatch

#: Queues the work of a step; and what makes of it a function that queues the same work again.
Work = Callable[[], None]
Record = Callable[[Work], Work]
#: Steps that run before one is recorded: kernels are compiled, and NCCL connects.
WARM_UP = 3
#: Of so many recorded steps one is waited for, so that its communication is measured: the next records its events anew.
_MEASURED = 16


class QueuesGradient(HasGradient, Protocol):
    """A network on a device, as its steps know it."""

    flat: torch.Tensor

    def start_epoch(self, epoch: int) -> None:
        """Bring to the device what `queue_gradient` reads of an epoch."""

    def queue_gradient(self) -> torch.Tensor:
        """Return what `gradient` does, of the epoch that has been started; reads nothing of the host."""


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

    network: QueuesGradient

    def __init__(
        self, network: QueuesGradient, adam: Adam, collectives: Collectives, meter: Meter, record: Record | None
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
