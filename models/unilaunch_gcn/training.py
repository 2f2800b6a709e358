"""The whole training on one page: part, network, epochs, result. Numbers only; no framework's tensor."""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from unilaunch.errors import DivergedError, SpecError, StoppedError
from unilaunch.interfaces.backend import Backend, Placement
from unilaunch.interfaces.model import Framework, Session
from unilaunch.interfaces.step import Step
from unilaunch.json_value import JsonValue
from unilaunch_gcn.checkpoint import Keeper
from unilaunch_gcn.device import DeviceTensors, device_network
from unilaunch_gcn.host import HostNetwork, training_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.memory import peak_memory
from unilaunch_gcn.network import Network, StepFigures
from unilaunch_gcn.objective import SPLITS, shown
from unilaunch_gcn.tensors import Tensors
from unilaunch_graph.data.graph import TRAIN
from unilaunch_graph.exchange.meter import Meter, Trace
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.part import Part
from unilaunch_graph.prediction_file import save_predictions

if TYPE_CHECKING:
    from unilaunch_gcn.spec import GcnSpec, TrainingSpec

#: Seconds between two lines of progress.
_PROGRESS = 2.0
#: Seconds between two writes of the epochs' figures.
_PAUSE = 1.0


class Training:
    """A training: its parts, built from what the user chose; then its epochs. All ranks must make the same calls.

    Args:
        options: What the user chose.
        part: This rank's part.
        session: This rank.
        framework: The framework, and the data path between the ranks.
    """

    def __init__(self, options: "GcnSpec", part: Part, session: Session, framework: Framework) -> None:
        self.options, self.part, self.session = options, part, session
        config = NetworkConfig.of(options, plan_layers(options, part.num_features, part.num_classes), session.seed)
        trace = Trace(session.world.rank, session.world.host, kept=options.trace)
        meter = Meter(trace)
        with session.together("build network"), trace.span("build network"):
            self.network = load_network(framework, session.placement, config, part, meter)
        adam = self.network.adam(options.lr, options.weight_decay)
        session.log.say(f"part {part.index}: {part.num_owned:,} owned nodes, {part.num_halo:,} halo nodes")
        self.keeper = Keeper(options, session, self.network, adam, part)
        self.history = self.keeper.start(framework.collectives)
        # Of all epochs, also of those before a checkpoint.
        self.losses, self.evaluations = self.history.losses, self.history.evaluations
        session.output.record(phase="train", owned=part.num_owned, halo=part.num_halo)
        self.steps = self.network.steps(adam, framework.collectives, meter)
        self.setup_bytes = meter.read()[1]
        self.epochs = Epochs(session.output.rank_dir / "epochs.jsonl")

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
            self.epochs.write()

    def _train(self) -> None:
        options, trace = self.options, self.steps.meter.trace
        every = options.checkpoint_every
        for epoch in range(len(self.losses), options.epochs):
            if options.patience is not None and self.history.waited >= options.patience:
                self.session.log.say(f"the end: no lower validation loss in {options.patience} evaluations")
                break
            self.session.progress(self.epochs.step(epoch, options.epochs, self.losses))
            with trace.span(f"epoch {epoch + 1}"):
                self.epochs.begin()
                self._note(self.steps.take(epoch, stop=self.session.stop_asked()))
            last = epoch + 1 == options.epochs
            if last or (epoch + 1) % options.eval_every == 0:
                self._evaluate()
            self._say(last=last)
            if every and (epoch + 1) % every == 0:
                self._save()
            if self.epochs.is_stop_asked and not last:
                self._stop()
        if not self.evaluations or self.evaluations[-1]["epoch"] != len(self.losses):
            self._evaluate()
        if every and self.keeper.saved < len(self.losses):
            self._save()
        self.keeper.finish(self.history)
        trace.write(self.session.output.rank_dir / "trace.json", self.session.log.logger.warning)

    def _note(self, ended: Sequence[StepFigures]) -> None:
        """Note what the steps that have ended have shown."""
        for figures in ended:
            refuse_infinite(self.options, LOSS, figures.loss, len(self.losses) + 1)
            self.losses.append(figures.loss)
            self.epochs.add(len(self.losses), figures)

    def _finish_steps(self) -> None:
        """Wait for the steps in flight, so that the recorded values agree with the weights, which must be finite."""
        self._note(self.steps.finish())
        refuse_infinite_weights(self.options, self.network, self.steps.adam, len(self.losses))

    def _save(self) -> None:
        self._finish_steps()
        with self.steps.meter.trace.span("checkpoint"):
            self.keeper.save(self.history)

    def _stop(self) -> NoReturn:
        """End a training that the user has stopped, with a checkpoint.

        Raises:
            StoppedError: Always.
        """
        self._finish_steps()
        folder = self.keeper.stop(self.history)
        raise StoppedError(
            f"stopped after epoch {len(self.losses)} of {self.options.epochs}; its checkpoint is in {folder}: "
            "go on with --resume"
        )

    def _evaluate(self) -> None:
        """Measure the network after the epochs so far; of a split without nodes there is nothing to measure: None."""
        self._finish_steps()
        with self.steps.meter.trace.span("evaluation"):
            counts = self.network.evaluate()
            self.steps.collectives.all_reduce(counts)
        self.steps.meter.read()
        epoch = len(self.losses)
        summed = self.network.host(self.network.local(counts)).astype(np.float64)
        refuse_infinite(self.options, "loss of the evaluation", float(summed.sum()), epoch)  # or a metric's count
        evaluation = {"epoch": epoch, **self.network.objective.metrics(summed, self.part.split_sizes)}
        is_lowest = self.history.add(evaluation, counts=epoch % self.options.eval_every == 0)
        self.session.output.record(**evaluation, loss=self.losses[-1])
        if is_lowest:
            self.keeper.keep_best(self.history)

    def _say(self, *, last: bool) -> None:
        if self.epochs.is_time_to_say() or last:
            quality = shown(self.evaluations[-1], "val") if self.evaluations else None
            accuracy = "" if quality is None else f", val {quality}"
            progress = f"epoch {len(self.losses)}/{self.options.epochs}: loss {self.losses[-1]:.4f}"
            self.session.log.say(f"{progress}{accuracy}, {self.epochs.seconds[-1]:.4f} s")

    def save_predictions(self, path: Path) -> None:
        """Write what the network says of every node after the last epoch; all ranks must call it."""
        on_host = self.session.placement.device == "cpu"
        collectives = self.steps.collectives if on_host else self.session.peers.collectives()
        scores = self.network.logits().astype(np.float32, copy=False)
        save_predictions(path, self.part, (scores, None), collectives)

    def result(self) -> dict[str, JsonValue]:
        """Return what stands in `result.json`, the same on every rank; all ranks must call it."""
        ranks = cast("list[Mapping[str, Any]]", self.session.peers.share(self._own_figures()))
        slowest = max(ranks, key=lambda rank: rank["seconds_per_epoch"] or 0.0)
        is_trained = bool(self.epochs.seconds)  # in this start
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
            "setup_bytes": self.setup_bytes,
            **self.epochs.figures(),
            "peak_memory_bytes": peak_memory(),
            **self.network.figures(),
        }


class Epochs:
    """The figures of each epoch of this start, in memory and in a file, one JSON line each.

    The file is written now and then: an epoch is to cost microseconds here.

    Attributes:
        seconds: What each epoch took.
        communication: Seconds of each in which this rank communicated.
        received: Bytes of halo rows that arrived in the last one.
        is_stop_asked: Some rank was asked to stop.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: list[float] = []
        self.communication: list[float] = []
        self.received, self.is_stop_asked = 0, False
        self._begins: deque[float] = deque()  # of each step in flight
        self._ended = 0.0
        self._lines: list[str] = []
        self._said = self._written = time.perf_counter()

    def begin(self) -> None:
        """Note that a step begins."""
        self._begins.append(time.perf_counter())

    def add(self, epoch: int, figures: StepFigures) -> None:
        """Add an epoch. A queued step took the time since it was queued, or the one before ended.

        Args:
            epoch: Its number, from 1.
            figures: What its step has shown.
        """
        now = time.perf_counter()
        seconds, self._ended = now - max(self._begins.popleft(), self._ended), now
        self.seconds.append(seconds)
        self.communication.append(figures.communication)
        self.received = figures.received
        self.is_stop_asked = self.is_stop_asked or figures.is_stop_asked
        self._lines.append(
            f'{{"epoch": {epoch}, "time": {time.time():.3f}, "loss": {figures.loss!r}, "seconds": {seconds:.6f}, '
            f'"communication": {figures.communication:.6f}, "bytes": {figures.received}}}\n'
        )
        if now - self._written > _PAUSE:
            self.write()

    def write(self) -> None:
        """Write what has been added; a training can do without it if the disk is full."""
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(self._lines))
        self._lines.clear()
        self._written = time.perf_counter()

    def step(self, epoch: int, epochs: int, losses: Sequence[float]) -> Step:
        """Return the progress of a training whose *epoch* of *epochs* begins, with the last one's figures."""
        if not self.seconds:
            return Step("epoch", epoch + 1, epochs, {}, None, 0)
        busy = self.seconds[-1] - self.communication[-1]
        return Step("epoch", epoch + 1, epochs, {"loss": losses[-1]}, busy, self.received)

    def is_time_to_say(self) -> bool:
        """Return whether a line of progress is due: after the first epoch, then now and then."""
        now = time.perf_counter()
        is_due = len(self.seconds) == 1 or now - self._said >= _PROGRESS
        self._said = now if is_due else self._said
        return is_due

    def figures(self) -> dict[str, JsonValue]:
        """Return the medians for `result.json`; None if nothing was trained."""
        return {
            "bytes_per_epoch": self.received if self.seconds else None,
            "seconds_per_epoch": _median(self.seconds),
            "communication_seconds": _median(self.communication),
        }


def _median(seconds: Sequence[float]) -> float | None:
    """Return the median but for the first epoch, which allocates and warms up; None if nothing was trained."""
    return float(np.median(seconds[1:] or seconds)) if seconds else None


def load_network(
    framework: Framework, placement: Placement, config: NetworkConfig, part: Part, meter: Meter
) -> Network:
    """Return the network of the framework on this rank's device; all ranks must call it.

    The part's features are the network's from then on: A_hat X may stand in their place.

    Raises:
        SpecError: The framework has no GCN on this device.
    """
    config = replace(config, owns_features=True)
    tensors = _tensors(framework.backend, placement, config)
    if isinstance(tensors, DeviceTensors):
        return device_network(config, part, tensors, framework.collectives, meter)
    return HostNetwork(training_problem(framework.collectives, placement.threads, config, part, meter), tensors)


def _tensors(backend: Backend, placement: Placement, config: NetworkConfig) -> Tensors:
    """Return the framework: ours for torch and mindspore, or what another backend brings for the GCN on cpu."""
    name, device, is_bfloat16 = backend.name, placement.device, config.is_bfloat16
    if name == "torch":
        if device == "cpu":
            from unilaunch_gcn.torch_tensors import TorchTensors

            return TorchTensors()
        from unilaunch_gcn.torch_device import TorchDeviceTensors

        return TorchDeviceTensors(str(placement), is_bfloat16=is_bfloat16)
    if name == "mindspore" and device != "cuda":
        from unilaunch_gcn.mindspore_tensors import MindSporeDeviceTensors, MindSporeTensors

        return MindSporeTensors() if device == "cpu" else MindSporeDeviceTensors(is_bfloat16=is_bfloat16)
    make_tensors = backend.network("gcn")
    if make_tensors and device == "cpu":
        tensors: Tensors = make_tensors(config)
        return tensors
    raise SpecError(
        f"--backend {name} --device {device}: the model gcn runs on torch (cpu, cuda, npu), on "
        "mindspore (cpu, npu; on cuda MindSpore has no variable all-to-all), and on cpu on any other backend with a "
        "network for it"
    )


LOSS = "loss of all ranks"


def refuse_infinite(options: "TrainingSpec", name: str, value: float, epoch: int) -> None:
    """End a training that has left the finite numbers: nothing after it would mean anything.

    All ranks have the same losses and weights, so they agree without a message.

    Raises:
        DivergedError: *value* is not a finite number.
    """
    if math.isfinite(value):
        return
    cause = f"--lr {options.lr:g} is too high: take a lower one"
    if epoch == 1 and name == LOSS:  # no step was taken yet
        cause = "the features are too large: scale them"
    wider = {"bfloat16": ", or --precision float32", "float32": ", or --precision float64", "float64": ""}
    raise DivergedError(
        f"epoch {epoch}: the {name} is {value:g}, not a finite number: the training has diverged, probably because "
        f"{cause}{wider[options.precision]}"
    )


def refuse_infinite_weights(options: "TrainingSpec", network: Network, adam: Adam, epoch: int) -> None:
    """Do so for the weights, and Adam's second moment: where that is infinite, weights stay finite and never change.

    Raises:
        DivergedError: One of the numbers is not finite.
    """
    for name, numbers in (("weight", network.flat), ("squared gradient", adam.second)):
        largest = max(float(numbers.max()), -float(numbers.min()))  # no array as large as the weights
        refuse_infinite(options, f"largest {name}", largest, epoch)
