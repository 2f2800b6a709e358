"""Measure the cost of an epoch's computing and of a message: a model that trains nothing."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, JsonValue

from unilaunch.errors import InputError
from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch.interfaces.model import Framework, Model, Session
from unilaunch.overriding import override
from unilaunch.rendezvous.alone import Alone
from unilaunch.spec.run_spec import Spec
from unilaunch_gcn.spec import TrainingSpec

if TYPE_CHECKING:
    from unilaunch_graph.partition.part import Part

_SECONDS, _EPOCHS = 1.5, (3, 15)  # of measuring a part, after two epochs that warm up
_LARGE = 4 << 20  # bytes of a message that shows the rate
_BUFFERS = 8_000_000  # bytes that the libraries take at their first products


class CalibrationSpec(Spec):
    """What is to be measured."""

    cases: Path = Field(
        default=Path("cases.json"), description="file that `plan` writes: the training and its partitions"
    )


class CalibrationModel(Model):
    """Measures; `unilaunch plan` runs it."""

    name = "calibration"
    is_internal = True
    spec = CalibrationSpec

    @override
    def check(self, options: CalibrationSpec, world_size: int) -> None:
        if not options.cases.exists():
            raise InputError(f"--cases {options.cases}: no such file: `unilaunch plan` writes it")

    @override
    def prepare(self, options: CalibrationSpec, session: Session) -> "tuple[TrainingSpec, list[Part], int]":
        from unilaunch_gcn import training  # noqa: F401  (numpy, SciPy and the network, which count as the interpreter)
        from unilaunch_gcn.memory import resident_memory
        from unilaunch_graph.partition.store import Partition, read_part

        before = resident_memory()
        told: dict[str, Any] = json.loads(options.cases.read_text(encoding="utf-8"))
        cuts = [Partition(Path(case["folder"]), case["fingerprint"], Path("/")) for case in told["cases"]]
        parts = [
            read_part(cut, case["parts"][session.world.rank], case["num_parts"])
            for cut, case in zip(cuts, told["cases"], strict=True)
        ]
        return TrainingSpec.model_validate(told["training"]), parts, resident_memory() - before

    @override
    def run(
        self, options: CalibrationSpec, prepared: "tuple[TrainingSpec, Sequence[Part], int]", session: Session,
        framework: Framework,
    ) -> Mapping[str, JsonValue]:  # fmt: skip
        from unilaunch_gcn.memory import resident_memory

        training, parts, of_parts = prepared
        own = resident_memory() - of_parts + _BUFFERS
        seconds: list[JsonValue] = [_slowest(session, _epoch(training, part, session, framework)) for part in parts]
        return {
            "seconds": seconds,
            "framework_bytes": own,
            **(_messages(framework.collectives, session) if session.world.size > 1 else {}),
        }


class SilentCollectives(Alone):
    """Collectives over which nothing moves: a part computes as if the others' rows were zeros, and there at once.

    Bytes are flags of the rows that training needs. The part's own stand for the others': the share is about the same.
    """

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        import numpy as np

        receive[...] = np.resize(send, receive.shape) if receive.dtype == np.uint8 else 0
        return self


def _slowest(session: Session, seconds: float) -> float:
    return max(float(str(one)) for one in session.peers.share(seconds))


def _epoch(options: TrainingSpec, part: "Part", session: Session, framework: Framework) -> float:
    """Return the median seconds of a gradient and a step; the ranks compute at once, and wait for each other."""
    import numpy as np

    from unilaunch_gcn.layers import NetworkConfig, plan_layers
    from unilaunch_gcn.training import load_network
    from unilaunch_graph.exchange.meter import Meter

    layers = plan_layers(options, part.num_features, part.num_classes)
    config = NetworkConfig.of(options, layers, session.seed)
    network = load_network(
        replace(framework, collectives=SilentCollectives()), session.placement, config, part, Meter()
    )
    adam = network.adam(options.lr, options.weight_decay)

    def timed(epoch: int) -> float:
        begin = time.perf_counter()
        adam.step(network.local(network.gradient(epoch))[2:])
        framework.collectives.barrier()
        return time.perf_counter() - begin

    timed(0)
    fitting = int(_SECONDS / _slowest(session, timed(1)))
    return float(np.median([timed(2 + epoch) for epoch in range(min(max(fitting, _EPOCHS[0]), _EPOCHS[1]))]))


def _messages(collectives: Collectives, session: Session) -> dict[str, JsonValue]:
    """Return the latency of an exchange between two ranks, and the rate of a large one, there and back at once."""
    import numpy as np

    rank, size = session.world.rank, session.world.size
    counts = [int(other == rank ^ 1) for other in range(size)]  # pairs of neighbours

    def exchange(width: int) -> float:
        send, receive = np.zeros((sum(counts), width), np.uint8), np.zeros((sum(counts), width), np.uint8)
        taken = []
        for _ in range(20):
            begin = time.perf_counter()
            collectives.exchange(send, counts, receive, counts).wait()
            taken.append(time.perf_counter() - begin)
        return float(np.median(taken[5:]))

    latency = exchange(8)
    rate = _LARGE / max(exchange(_LARGE) - latency, 1e-9)
    told = session.peers.share([latency, rate])[0]  # rank 0 has a neighbour
    return dict(zip(("latency", "bytes_per_second"), told, strict=True)) if isinstance(told, list) else {}
