"""The states that a training saves: checkpoints, the last and the best model, and the state from which it resumes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from unilaunch.errors import InputError, OutputError, SpecError
from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.model import Session
from unilaunch.json_value import JsonValue
from unilaunch_gcn import checkpoint
from unilaunch_gcn.checkpoint_file import has_val_loss, load_weights
from unilaunch_gcn.network import Network
from unilaunch_graph.arrays import Floats
from unilaunch_graph.optimizer import Adam

if TYPE_CHECKING:
    from unilaunch_gcn.spec import GcnSpec
    from unilaunch_graph.partition.part import Part


@dataclass(slots=True)
class History:
    """What the epochs of a training have shown so far, also those before a checkpoint.

    Attributes:
        losses: Each epoch's.
        evaluations: As in `result.json`. A metric of a split without nodes is None.
        counted: The epochs whose evaluations patience counts: those of `--eval-every`, of each start its own.
        waited: Counted evaluations since the one with the lowest validation loss of them.
    """

    losses: list[float] = field(default_factory=list)
    evaluations: list[dict[str, float | None]] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    waited: int = 0
    _lowest: float = inf
    _lowest_counted: float = inf

    @classmethod
    def of(cls, losses: list[float], evaluations: Sequence[dict[str, float | None]], counted: Sequence[int]) -> Self:
        """Return the history that a checkpoint holds."""
        history, epochs = cls(losses), set(counted)
        for evaluation in evaluations:
            history.add(evaluation, counts=evaluation["epoch"] in epochs)
        return history

    def add(self, evaluation: dict[str, float | None], *, counts: bool) -> bool:
        """Add an evaluation, and return whether it has the lowest validation loss of all.

        Args:
            evaluation: As in `result.json`.
            counts: Patience counts it.
        """
        self.evaluations.append(evaluation)
        loss = evaluation["val_loss"]
        if counts:
            self.counted.append(int(evaluation["epoch"] or 0))
        if loss is None:
            return False
        if counts:
            self.waited = 0 if loss < self._lowest_counted else self.waited + 1
            self._lowest_counted = min(loss, self._lowest_counted)
        is_lowest = loss < self._lowest
        self._lowest = min(loss, self._lowest)
        return is_lowest


class Keeper:
    """Keeps the state of a training. All ranks have the same weights, so rank 0 writes.

    Args:
        options: What the user chose.
        session: This rank.
        network: The network.
        adam: The optimiser of its weights.
        part: This rank's part.
    """

    def __init__(self, options: "GcnSpec", session: Session, network: Network, adam: Adam, part: "Part") -> None:
        self.options, self.session, self.network, self.adam = options, session, network, adam
        self.decided = checkpoint.decides(options, session.seed, part)
        folder = options.checkpoint_dir or session.output.checkpoints
        self.files = checkpoint.Writer(folder, network.layers, options.keep_checkpoints)
        self.saved = 0
        self.best: checkpoint.State | None = None

    def start(self, collectives: Collectives) -> History:
        """Return where the training begins, and make the folder; all ranks must call it.

        Raises:
            RefusedTogetherError: The folder, or what is in it, is of another training or cannot be used.
        """
        options, history = self.options, History()
        if options.resume:
            history = self._resume(collectives)
        elif options.checkpoint_dir:
            self._refuse_others()
        if options.checkpoint_every or options.save_model:
            self._make_folder()
        return history

    def keep_best(self, history: History) -> None:
        """Keep the weights in memory: the last evaluation has the lowest validation loss."""
        if self.options.save_model and self.session.world.rank == 0:
            self.best = None  # frees its weights
            weights = [np.array(self.network.host(self.network.flat))]
            self.best = self._state(weights, history)

    def save(self, history: History) -> None:
        """Write a checkpoint.

        Raises:
            OutputError: It cannot be written.
        """
        self.saved = len(history.losses)
        if self.session.world.rank == 0:
            self.files.save(self._state(self._numbers(), history))
            self._write_best()

    def finish(self, history: History) -> None:
        """Write the last and the best model; a run whose disk is full has a result without them."""
        if self.session.world.rank or not self.options.save_model:
            return
        try:
            self.files.write(checkpoint.FINAL, self._state(self._numbers(), history))
            self._write_best()
        except OutputError as error:
            line = f"the model is not kept: {error}"
            self.session.log.logger.warning(line)

    def stop(self, history: History) -> str:
        """Write a checkpoint of a training that the user ends, and return the folder; all ranks must call it."""
        if not (self.options.checkpoint_every or self.options.save_model):
            self._make_folder()
        with self.session.together("checkpoint"):  # no rank leaves before it is written: that would end the others
            if self.saved < len(history.losses):
                self.save(history)
        return str(self.files.folder)

    def _write_best(self) -> None:
        if self.best:
            self.files.write(checkpoint.BEST, self.best)
            self.best = None

    def _numbers(self) -> list[Floats]:
        return [self.network.host(row) for row in (self.network.flat, self.adam.first, self.adam.second)]

    def _state(self, numbers: Sequence[Floats], history: History) -> checkpoint.State:
        losses, evaluations, counted = [*history.losses], [*history.evaluations], [*history.counted]
        return checkpoint.State(numbers, len(losses), losses, evaluations, self.decided, counted)

    def _make_folder(self) -> None:
        """Make the folder, or refuse one that cannot be written or is no run's; all ranks must call it."""
        with self.session.together("checkpoints"):
            if self.session.world.rank == 0 and self.options.checkpoint_dir:
                self.files.make_folder()
            elif self.session.world.rank == 0:
                self.session.output.make_checkpoints("give --checkpoint-dir, or --no-save-model")

    def _refuse_others(self) -> None:
        """Refuse a folder that holds another run's checkpoints; all ranks must call it."""
        folder = self.files.folder
        with self.session.together("checkpoints"):
            if self.session.world.rank == 0 and checkpoint.exist(folder):
                raise SpecError(f"--checkpoint-dir {folder}: it holds checkpoints: --resume, or another folder")

    def _resume(self, collectives: Collectives) -> History:
        """Go on from the newest checkpoint, which rank 0 alone must see; all ranks must call it."""
        session, network, folder = self.session, self.network, self.files.folder
        with session.together("resume"):
            state = None if session.world.rank else self._newest()
        told = state and {
            "losses": [*state.losses], "evaluations": [*map(dict, state.evaluations)], "counted": state.counted,
        }  # fmt: skip
        shared = cast("Mapping[str, Any] | None", session.peers.share(cast("JsonValue", told))[0])
        if shared is None:
            session.log.say(f"no checkpoint in {folder}: from the start")
            return History()
        dtype = network.config.dtype
        zeros = np.zeros((3, len(network.flat)), dtype)
        buffer = network.shared(np.stack(state.numbers).astype(dtype, copy=False) if state else zeros)
        collectives.broadcast(buffer, 0)
        rows = network.local(buffer)
        for kept, row in zip((network.flat, self.adam.first, self.adam.second), rows, strict=True):
            kept[:] = row
        history = History.of(shared["losses"], shared["evaluations"], shared["counted"])
        self.saved = len(history.losses)
        self.adam.resume(self.saved)
        if session.world.rank == 0:
            self.files.resume(self.saved)
        session.log.say(f"resumed after epoch {self.saved}, from {folder}")
        return history

    def _newest(self) -> checkpoint.State | None:
        """Return the newest state of this training, None if there is none; what is damaged or lost is said."""
        folder, warn = self.files.folder, self.session.log.logger.warning
        state, damaged = checkpoint.newest(folder, self.network.layers)
        for line in damaged:
            warn(line)
        if not state:
            checkpoint.check_best(folder, self.decided, alone=not damaged)
            return None
        checkpoint.check(state, self.decided, folder)
        if self.options.save_model and has_val_loss(state.evaluations):
            try:
                load_weights(folder / checkpoint.BEST)
            except InputError as error:
                warn(f"{error}: the best model so far is gone; only a lower validation loss makes another one")
        return state
