"""The whole training on one page: part, network, epochs, result. Numbers only; no framework's tensor."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from unilaunch.errors import StoppedError
from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.model import Framework, Session
from unilaunch.interfaces.step import Step
from unilaunch.json_value import JsonValue
from unilaunch_gcn.build import load_network
from unilaunch_gcn.divergence import LOSS, FiniteCheck
from unilaunch_gcn.keeping import History, Keeper
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.network import Network
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.series import Series
from unilaunch_graph.data.graph import TRAIN
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.trace import Trace
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.part import Part
from unilaunch_graph.peak import peak_memory
from unilaunch_graph.prediction_file import save_predictions
from unilaunch_graph.training.objective import SPLITS, shown
from unilaunch_graph.training.steps import StepFigures, Steps

if TYPE_CHECKING:
    from unilaunch_gcn.spec import GcnSpec

#: Seconds between two lines of progress.
_PROGRESS = 2.0


@dataclass(slots=True)
class Training:
    """A training: what it works on, and what its epochs leave.

    Attributes:
        options: What the user chose.
        session: This rank.
        collectives: The data path between the ranks.
        network: The network in its framework.
        part: This rank's part.
        meter: Counts bytes and waiting.
        adam: The optimiser of the network's weights.
        steps: The steps.
        setup_bytes: Halo bytes that arrived before the first epoch.
        series: Each epoch's figures, on disk.
        keeper: Keeps checkpoints and models.
        history: Losses and evaluations.
        finite: Ends a training whose numbers are not finite.
        stopped: Some rank was asked to stop, before or in the last step.
        begins: When each step in flight was begun, by `time.perf_counter`.
        ended: When the last step that has ended did so.
    """

    options: "GcnSpec"
    session: Session
    collectives: Collectives
    network: Network
    part: Part
    meter: Meter
    adam: Adam
    steps: Steps
    setup_bytes: int
    series: Series
    keeper: Keeper
    history: History
    finite: FiniteCheck
    epoch_seconds: list[float] = field(default_factory=list)
    communication: list[float] = field(default_factory=list)
    bytes_per_epoch: int = 0
    stopped: bool = False
    said: float = field(default_factory=time.perf_counter)
    begins: deque[float] = field(default_factory=deque)
    ended: float = 0.0

    @classmethod
    def start(cls, options: "GcnSpec", part: Part, session: Session, framework: Framework) -> "Training":
        """Build the network and its optimiser; all ranks must call it."""
        layers = plan_layers(options, part.num_features, part.num_classes)
        config = NetworkConfig.of(options, layers, session.seed)
        trace = Trace(session.world.rank, session.world.host, kept=options.trace)
        meter = Meter(trace)
        with session.together("build network"), trace.span("build network"):
            network = load_network(framework, session.placement, config, part, meter)
        adam = network.adam(options.lr, options.weight_decay)
        session.log.say(f"part {part.index}: {part.num_owned:,} owned nodes, {part.num_halo:,} halo nodes")
        keeper = Keeper(options, session, network, adam, part)
        history = keeper.start(framework.collectives)
        session.output.record(phase="train", owned=part.num_owned, halo=part.num_halo)
        return cls(
            options,
            session,
            framework.collectives,
            network,
            part,
            meter,
            adam,
            network.steps(adam, framework.collectives, meter),
            meter.read()[1],
            Series(session.output.rank_dir / "epochs.jsonl"),
            keeper,
            history,
            FiniteCheck(options, network, adam, framework.collectives),
        )

    @property
    def losses(self) -> list[float]:
        """Of all epochs, also of those before a checkpoint."""
        return self.history.losses

    @property
    def evaluations(self) -> list[dict[str, float | None]]:
        """Of all epochs, also of those before a checkpoint."""
        return self.history.evaluations

    def run(self) -> None:
        """Train to the last epoch, or until the validation loss has not fallen for long enough.

        Raises:
            DivergedError: The loss or a weight is not a finite number; on every rank.
            StoppedError: The user has stopped the job; on every rank.
        """
        done, wanted = len(self.losses), self.options.epochs
        if done >= wanted:
            self.session.log.say(f"nothing is left to train: {done} of {wanted} epochs are done")
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what comes of it ends the training, in one line
                self._train()
        finally:
            self.series.write()

    def _train(self) -> None:
        trace = self.meter.trace
        every = self.options.checkpoint_every
        for epoch in range(len(self.losses), self.options.epochs):
            if self._out_of_patience():
                self.session.log.say(f"the end: no lower validation loss in {self.options.patience} evaluations")
                break
            self._tell(epoch)
            with trace.span(f"epoch {epoch + 1}"):
                self._step(epoch)
            last = epoch + 1 == self.options.epochs
            if last or (epoch + 1) % self.options.eval_every == 0:
                self._evaluate()
            self._say(last=last)
            if every and (epoch + 1) % every == 0:
                self._save()
            if self.stopped and not last:
                self._finish_steps()
                self.finite.weights(len(self.losses))
                folder = self.keeper.stop(self.history)
                raise StoppedError(
                    f"stopped after epoch {len(self.losses)} of {self.options.epochs}; its checkpoint is in {folder}: "
                    "go on with --resume"
                )
        if not self.evaluations or self.evaluations[-1]["epoch"] != len(self.losses):
            self._evaluate()
        if every and self.keeper.saved < len(self.losses):
            self._save()
        self.keeper.finish(self.history)
        trace.write(self.session.output.rank_dir / "trace.json", self.session.log.logger.warning)

    def _tell(self, epoch: int) -> None:
        """Note the epoch that begins, with the last one's figures."""
        has_last = bool(self.epoch_seconds)  # of this start
        values = {"loss": self.losses[-1]} if has_last else {}
        busy = self.epoch_seconds[-1] - self.communication[-1] if has_last else None
        received = self.bytes_per_epoch if has_last else 0
        self.session.progress(Step("epoch", epoch + 1, self.options.epochs, values, busy, received))

    def _step(self, epoch: int) -> None:
        self.begins.append(time.perf_counter())
        for figures in self.steps.take(epoch, stop=self.session.stop_asked()):
            self._note(figures)

    def _finish_steps(self) -> None:
        """Wait for the steps in flight, so that the recorded values agree with the weights."""
        for figures in self.steps.finish():
            self._note(figures)

    def _note(self, figures: StepFigures) -> None:
        """Note what a step has shown. A queued step took the time since it was queued, or the one before ended."""
        now = time.perf_counter()
        seconds, self.ended = now - max(self.begins.popleft(), self.ended), now
        self.finite.loss(LOSS, figures.loss, len(self.losses) + 1)
        self.losses.append(figures.loss)
        self.epoch_seconds.append(seconds)
        self.communication.append(figures.communication)
        self.bytes_per_epoch = figures.received
        self.stopped = self.stopped or figures.is_stop_asked
        self.series.add(len(self.losses), figures.loss, seconds, figures.communication, figures.received)

    def _save(self) -> None:
        self._finish_steps()
        self.finite.weights(len(self.losses))
        with self.meter.trace.span("checkpoint"):
            self.keeper.save(self.history)

    def _evaluate(self) -> None:
        """Measure the network after the epochs so far; of a split without nodes there is nothing to measure: None."""
        self._finish_steps()
        self.finite.weights(len(self.losses))
        with self.meter.trace.span("evaluation"):
            counts = self.network.evaluate()
            self.collectives.all_reduce(counts)
        self.meter.read()
        epoch = len(self.losses)
        summed = self.network.host(self.network.local(counts)).astype(np.float64)
        self.finite.loss("loss of the evaluation", float(summed.sum()), epoch)  # or what a metric is made of
        evaluation = {"epoch": epoch, **self.network.objective.metrics(summed, self.part.split_sizes)}
        is_lowest = self.history.add(evaluation, counts=epoch % self.options.eval_every == 0)
        self.session.output.record(**evaluation, loss=self.losses[-1])
        if is_lowest:
            self.keeper.keep_best(self.history)

    def _out_of_patience(self) -> bool:
        """Count as a single run does: a run before may have ended between two evaluations, with one of its own."""
        return self.options.patience is not None and self.history.waited >= self.options.patience

    def _say(self, *, last: bool) -> None:
        now = time.perf_counter()
        first = len(self.epoch_seconds) == 1  # of this start
        if first or last or now - self.said >= _PROGRESS:
            self.said = now
            quality = shown(self.evaluations[-1], "val") if self.evaluations else None
            accuracy = "" if quality is None else f", val {quality}"
            progress = f"epoch {len(self.losses)}/{self.options.epochs}: loss {self.losses[-1]:.4f}"
            self.session.log.say(f"{progress}{accuracy}, {self.epoch_seconds[-1]:.4f} s")

    def save_predictions(self, path: Path) -> None:
        """Write what the network says of every node after the last epoch; all ranks must call it."""
        on_host = self.session.placement.device == "cpu"
        collectives = self.collectives if on_host else self.session.peers.collectives()
        scores = self.network.logits().astype(np.float32, copy=False)
        save_predictions(path, self.part, (scores, None), collectives)

    def result(self) -> dict[str, JsonValue]:
        """Return what stands in `result.json`, the same on every rank; all ranks must call it."""
        ranks = cast("list[Mapping[str, Any]]", self.session.peers.share(self._own_figures()))
        slowest = max(ranks, key=lambda rank: rank["seconds_per_epoch"] or 0.0)
        is_trained = bool(self.epoch_seconds)  # in this start
        final = self.evaluations[-1]
        return {
            "dataset": self.options.dataset,
            "num_nodes": self.part.num_nodes,
            "num_parts": self.part.num_parts,
            "epochs": len(self.losses),
            "loss": cast("JsonValue", self.losses),
            "task": self.part.task.value,
            **{f"{split}_accuracy": None for split in SPLITS},
            **{name: value for name, value in final.items() if name not in {"epoch", "val_loss"}},
            "seconds_per_epoch": slowest["seconds_per_epoch"],
            "compute_seconds": slowest["seconds_per_epoch"] - slowest["communication_seconds"] if is_trained else None,
            "communication_seconds": slowest["communication_seconds"],
            "bytes_per_epoch": sum(rank["bytes_per_epoch"] for rank in ranks) if is_trained else None,
            "setup_bytes": sum(rank["setup_bytes"] for rank in ranks),
            "evaluations": cast("JsonValue", self.evaluations),
            "ranks": cast("JsonValue", ranks),
        }

    def _own_figures(self) -> dict[str, JsonValue]:
        return {
            "owned": self.part.num_owned,
            "halo": self.part.num_halo,
            "training_nodes": int((self.part.split == TRAIN).sum()),
            "bytes_per_epoch": self.bytes_per_epoch if self.epoch_seconds else None,
            "setup_bytes": self.setup_bytes,
            "seconds_per_epoch": _median(self.epoch_seconds),
            "communication_seconds": _median(self.communication),
            "peak_memory_bytes": peak_memory(),
            **self.network.figures(),
        }


def _median(seconds: Sequence[float]) -> float | None:
    """Return the median but for the first epoch, which allocates and warms up; None if nothing was trained."""
    return float(np.median(seconds[1:] or seconds)) if seconds else None
