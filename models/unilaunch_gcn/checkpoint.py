"""Checkpoints: the state of a training, from which either framework can go on, on any number of parts.

| file | what |
|---|---|
| epoch-000050.safetensors | the state after 50 epochs: weights, Adam's moments, history |
| final.safetensors | the same after the last epoch |
| best.safetensors | the weights with the lowest validation loss, and the history up to them |

`Keeper` is what a training calls. Then come the folder, and the content of a file: parameters and moments by name, and
the history as text. Nothing is executed.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from errno import EINVAL, ENOTSUP
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError, OutputError, SpecError
from unilaunch.folder.files import write_whole
from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.model import Session
from unilaunch.json_value import JsonValue
from unilaunch_gcn.layers import Layer, Parameter
from unilaunch_gcn.network import Network
from unilaunch_gcn.options import count_heads
from unilaunch_graph.arrays import Floats
from unilaunch_graph.optimizer import Adam

if TYPE_CHECKING:
    from unilaunch_gcn.spec import GcnSpec
    from unilaunch_graph.partition.part import Part

FORMAT = 4
#: What a parameter's name is followed by in the three rows of numbers.
_ROWS = ("", ".first_moment", ".second_moment")
#: The keys of the file's metadata: the history as JSON, and the SHA-256 of that text and of all tensors.
_HISTORY, _CHECKSUM = "unilaunch", "sha256"
_ALIGNMENT = 8  # bytes, of where the numbers begin
#: The options that decide the curve; the seed is another one.
_DECIDING = (
    "dataset", "split_seed", "use_gdc", "gdc_alpha", "gdc_top_k", "gdc_threshold",
    "conv", "layers", "hidden", "bias", "layer_norm", "residual",
    "dropout", "lr", "weight_decay", "precision",
)  # fmt: skip
_NAME, _NAMES = "epoch-{:06d}.safetensors", re.compile(r"epoch-(\d+)\.safetensors")
FINAL, BEST = "final.safetensors", "best.safetensors"
#: The names under which the content and the task of the data set stand among what decides the curve.
_CONTENT, TASK = "data_sha256", "task"
#: And the content on which a prediction depends: edges and features.
INPUTS = "inputs_sha256"
#: And whether sage or gat has kept the directions of edges.
DIRECTED = "directed_edges"
_DATASET = "dataset"


@dataclass(frozen=True, slots=True)
class State:
    """A training after an epoch.

    Attributes:
        numbers: All weights, then Adam's first and second moments, unless only weights are kept. 3 or 1, each
            (num_weights,)
        epoch: Number of epochs that have been trained.
        losses: Each epoch's.
        evaluations: As in `result.json`.
        decided: What decides the curve, by option.
        counted: The epochs whose evaluations patience counts.
    """

    numbers: Sequence[Floats]
    epoch: int
    losses: Sequence[float]
    evaluations: Sequence[Mapping[str, float | None]]
    decided: Mapping[str, Any] = field(default_factory=dict)
    counted: Sequence[int] = ()


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
        self.decided = decides(options, session.seed, part)
        folder = options.checkpoint_dir or session.output.checkpoints
        self.files = Writer(folder, network.layers, options.keep_checkpoints)
        self.saved = 0
        self.best: State | None = None

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
            self.files.write(FINAL, self._state(self._numbers(), history))
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
            self.files.write(BEST, self.best)
            self.best = None

    def _numbers(self) -> list[Floats]:
        return [self.network.host(row) for row in (self.network.flat, self.adam.first, self.adam.second)]

    def _state(self, numbers: Sequence[Floats], history: History) -> State:
        losses, evaluations, counted = [*history.losses], [*history.evaluations], [*history.counted]
        return State(numbers, len(losses), losses, evaluations, self.decided, counted)

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
            names = [] if self.session.world.rank else _names(folder)
            if any(name in {FINAL, BEST} or _NAMES.fullmatch(name) for name in names):
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

    def _newest(self) -> State | None:
        """Return the newest state of this training, None if there is none; what is damaged or lost is said."""
        folder, warn = self.files.folder, self.session.log.logger.warning
        state, damaged = newest(folder, self.network.layers)
        for line in damaged:
            warn(line)
        if not state:
            check_best(folder, self.decided, alone=not damaged)
            return None
        check(state, self.decided, folder)
        if self.options.save_model and has_val_loss(state.evaluations):
            try:
                load_weights(folder / BEST)
            except InputError as error:
                warn(f"{error}: the best model so far is gone; only a lower validation loss makes another one")
        return state


def decides(options: "GcnSpec", seed: int, part: "Part") -> dict[str, Any]:
    """Return what decides the curve: a checkpoint is of one training only.

    Args:
        options: What the user chose.
        seed: Seed of everything that is drawn.
        part: This rank's part, which knows the task and the content of the data set.
    """
    directed = {} if options.conv == "gcn" else {DIRECTED: part.is_directed}
    content = {_CONTENT: part.data_sha256, INPUTS: part.inputs_sha256}
    return {**chosen(options, seed), **content, TASK: part.task.value, **directed}


def chosen(options: "GcnSpec", seed: int) -> dict[str, Any]:
    """Return what decides the curve beside the data set: the user's options and the seed."""
    told = options.to_json()
    heads = {"heads": count_heads(options)} if options.conv == "gat" else {}
    return {"seed": seed, **{name: told[name] for name in _DECIDING}, **heads}


def differing(decided: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return the names of what decides the curve and is not what it was before.

    The name of the data set is not among them: its content decides, and may lie under any path.
    """
    return [name for name, value in decided.items() if name != _DATASET and before.get(name) != value]


class Writer:
    """Writes the checkpoints of one training. It removes only files of this training.

    Args:
        folder: Where the checkpoints are written. It is made if it is not there.
        layers: The layers of the network.
        keep: How many of this training's checkpoints are kept: the newest.
    """

    def __init__(self, folder: Path, layers: Sequence[Layer], keep: int) -> None:
        self.folder, self.layers, self.keep = folder, layers, keep
        self.written: list[Path] = []

    def make_folder(self) -> None:
        """Make the folder, and write and remove a file in it.

        Raises:
            InputError: That is not possible: no checkpoint could be written later.
        """
        probe = self.folder / f".probe.{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InputError(
                f"--checkpoint-dir {self.folder}: cannot be written: {error.strerror}: choose another folder, or "
                "--no-save-model"
            ) from None

    def resume(self, epoch: int) -> None:
        """Count the checkpoints of the runs before, up to the epoch from which this run goes on, as this run's."""
        numbers = (int(known[1]) for name in _names(self.folder) if (known := _NAMES.fullmatch(name)))
        self.written = [self.folder / _NAME.format(number) for number in sorted(numbers) if number <= epoch]

    def save(self, state: State) -> Path:
        """Write a checkpoint, remove this training's oldest ones, and return the file.

        Raises:
            OutputError: It cannot be written; those that are there are left as they are.
        """
        path = self.write(_NAME.format(state.epoch), state)
        self.written.append(path)
        while len(self.written) > self.keep:
            self.written.pop(0).unlink(missing_ok=True)
        return path

    def write(self, name: str, state: State) -> Path:
        """Write a state, whole or not at all, in place of the file of that name if there is one.

        Raises:
            OutputError: It cannot be written.
        """
        path = self.folder / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, *content(state, self.layers))
            _sync(self.folder)
        except OSError as error:
            raise OutputError(f"checkpoint {path}: cannot be written: {error.strerror}") from None
        return path


def newest(folder: Path, layers: Sequence[Layer]) -> tuple[State | None, list[str]]:
    """Return the newest state that is whole, None if there is none, and a line on each newer one that is damaged.

    Raises:
        SpecError: It is of a network of other widths.
        InputError: It cannot be read now, or another version of unilaunch wrote it: nothing is known of its content.
    """
    state: State | None = None
    damaged: dict[Path, str] = {}
    for path in _files(folder):
        try:
            state = load(path, layers)
            break
        except OSError as error:
            _refuse_unreadable(path, error)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            damaged[path] = " ".join(str(error).split())
    instead = "an older one is taken" if state else "and no older one is whole"
    return state, [f"checkpoint {path} is damaged, {instead}: {why}" for path, why in damaged.items()]


def model_file(folder: Path) -> Path:
    """Return the model that a run has left: the best one, else the last one.

    Raises:
        InputError: There is none.
    """
    if BEST in _names(folder):
        return folder / BEST
    files = _files(folder)
    if not files:
        why = "no model" if folder.is_dir() else "no model: there is no such folder"
        raise InputError(f"{folder}: {why}: a run with --no-save-model leaves none; expected {BEST} or {FINAL} in it")
    return files[0]


def check(state: State, decided: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on with another training.

    Raises:
        SpecError: An option that decides the curve is not what it was, the data set has another content, or the
            state has no moments.
    """
    if len(state.numbers) == 1:
        raise SpecError(
            f"--resume: the newest checkpoint in {folder} holds weights alone, without Adam's moments, as {BEST} does: "
            "move it away; an older checkpoint is taken then"
        )
    for name in differing(decided, state.decided):
        if name == _CONTENT:
            raise SpecError(
                f"--resume: the data set {decided.get(_DATASET)} has another content than when the checkpoints in "
                f"{folder} were written: restore the data set and --normalize-features, or start anew with another "
                "--checkpoint-dir"
            )
        raise SpecError(
            f"--resume: the checkpoints in {folder} are of a training with {name}={state.decided.get(name)!r}, "
            f"not {decided[name]!r}: take the same options, or another --checkpoint-dir"
        )


def check_best(folder: Path, decided: Mapping[str, Any], *, alone: bool) -> None:
    """Refuse to overwrite the best model where no state is whole; beside a damaged one only another training's.

    Raises:
        SpecError: It would be overwritten.
        InputError: It cannot be read, or is damaged.
    """
    if BEST not in _names(folder):
        return
    remedy = "which this run would overwrite: move it away, or take another --checkpoint-dir"
    if alone:
        raise SpecError(f"--resume: {folder} holds {BEST} alone, from which no training goes on, and {remedy}")
    before = load_weights(folder / BEST)[1]["decided"]
    for name in differing(decided, before):
        raise SpecError(
            f"--resume: {folder / BEST} is of another training (its {name} is {before.get(name)!r}, not "
            f"{decided[name]!r}), {remedy}"
        )


def has_val_loss(evaluations: Sequence[Mapping[str, float | None]]) -> bool:
    """Return whether one of the evaluations was of validation nodes."""
    return any(one["val_loss"] is not None for one in evaluations)


def _files(folder: Path) -> list[Path]:
    """Return the checkpoints, newest first; what is being written, and a copy that a user made, has another name."""
    names = (name for name in _names(folder) if name == FINAL or _NAMES.fullmatch(name))
    found = {folder / name: _epoch_of(folder / name) for name in names}
    return sorted(found, key=found.__getitem__, reverse=True)


def _names(folder: Path) -> list[str]:
    """Return the names of all files in a folder; of one that is not there none."""
    try:
        return os.listdir(folder)  # noqa: PTH208  (Path.glob finds nothing in a folder that it cannot read)
    except FileNotFoundError:
        return []
    except OSError as error:
        _refuse_unreadable(folder, error)


def _epoch_of(path: Path) -> tuple[int, bool]:
    """Return what checkpoints are ordered by: their epoch, the final one behind an equal; damaged, it is the oldest."""
    numbered = _NAMES.fullmatch(path.name)
    if numbered:
        return int(numbered[1]), True
    try:
        return int(json.loads(_metadata(path.read_bytes())[_HISTORY])["epoch"]), False
    except OSError as error:
        _refuse_unreadable(path, error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return -1, False


def _refuse_unreadable(path: Path, error: OSError) -> NoReturn:
    """Stop: what cannot be read now may be whole, and going on without it would train the same epochs again.

    Raises:
        InputError: Always.
    """
    what = "checkpoint" if path.suffix else "checkpoints in"
    raise InputError(
        f"{what} {path} cannot be read: {error.strerror or error}: nothing was trained and nothing was removed; make "
        "it readable (owner, mode, mount) and start again, or move it away"
    ) from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {EINVAL, ENOTSUP}:  # file systems that sync no folder: of SMB, and some in user space
            raise
    finally:
        os.close(descriptor)


def content(state: State, layers: Sequence[Layer]) -> list[bytes | memoryview]:
    """Return a state as the content of a file in safetensors' format, in pieces.

    The pieces are the arrays themselves: safetensors' own function makes three copies of them.
    """
    tensors = {name: np.ascontiguousarray(array) for name, array in _split(state.numbers, layers).items()}
    history = {"epoch": state.epoch, "losses": list(state.losses), "evaluations": list(state.evaluations)}
    history["counted"] = list(state.counted)
    text = json.dumps({"format": FORMAT, **history, "decided": dict(state.decided)}, allow_nan=False)
    header: dict[str, Any] = {"__metadata__": {_HISTORY: text, _CHECKSUM: _checksum(text, tensors)}}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": f"F{8 * array.itemsize}", "shape": array.shape, "data_offsets": (begin, end)}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % _ALIGNMENT)
    return [len(head).to_bytes(8, "little"), head, *map(_memory, tensors.values())]


def _memory(array: NDArray[Any]) -> memoryview:
    """Return the bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def load(path: Path, layers: Sequence[Layer]) -> State:
    """Return the state in a file.

    Raises:
        SpecError: It is of a network of other widths.
        InputError: Another version of unilaunch wrote it.
        OSError, ValueError, KeyError, TypeError, RecursionError: It cannot be read, or is damaged.
    """
    tensors, told = _read(path)
    shapes = {name: array.shape for name, array in tensors.items() if not name.endswith("_moment")}
    expected = {name: parameter.shape for name, parameter in named(layers)}
    if shapes != expected:
        raise SpecError(
            f"--resume: the checkpoint {path} is of another network: {_told(shapes)}, not {_told(expected)}"
        )
    kept = _ROWS if len(tensors) > len(shapes) else _ROWS[:1]
    rows = [np.concatenate([tensors[f"{name}{what}"].ravel() for name in expected]) for what in kept]
    return State(rows, int(told["epoch"]), told["losses"], told["evaluations"], told["decided"], told["counted"])


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the tensors and the history in a file whose checksum is right."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    content = path.read_bytes()  # not mapped: where a disk fails, reading is an OSError and a mapping is SIGBUS
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    metadata = _metadata(content)
    if _checksum(metadata[_HISTORY], tensors) != metadata.get(_CHECKSUM):
        raise ValueError("its content is not what was written")
    told = json.loads(metadata[_HISTORY])
    if told["format"] != FORMAT:
        raise InputError(
            f"--resume: the checkpoint {path} was written by another version of unilaunch: go on with that version, "
            "or start anew with another --checkpoint-dir"
        )
    return tensors, told


def load_weights(path: Path) -> tuple[dict[str, NDArray[Any]], Mapping[str, Any]]:
    """Return the parameters in a checkpoint by name, and its history: evaluations, what decided its curve.

    Raises:
        InputError: It cannot be read, or is damaged.
    """
    try:
        tensors, told = _read(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: damaged: {' '.join(str(error).split())}") from None
    return {name: array for name, array in tensors.items() if not name.endswith("_moment")}, told


def _split(numbers: Sequence[Floats], layers: Sequence[Layer]) -> dict[str, NDArray[Any]]:
    """Return each parameter, and its two moments, under its name and in its shape."""
    tensors, begin = {}, 0
    for name, parameter in named(layers):
        for row, what in zip(numbers, _ROWS, strict=False):  # without moments where only weights are kept
            tensors[f"{name}{what}"] = row[begin : begin + parameter.size].reshape(parameter.shape)
        begin += parameter.size
    return tensors


def named(layers: Sequence[Layer]) -> list[tuple[str, Parameter]]:
    """Return the parameters with their names in a file, in the order of a network's weights."""
    return [
        (f"layers.{depth}.{parameter.name}", parameter)
        for depth, layer in enumerate(layers)
        for parameter in layer.parameters
    ]


def _told(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in sorted(shapes.items()))


def _metadata(content: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file: eight bytes of the header's length, then the header as JSON."""
    length = int.from_bytes(content[:8], "little")
    metadata: dict[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    return metadata


def _checksum(history: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of all that a checkpoint says: its history, and each tensor's name, type, shape, numbers."""
    digest = hashlib.sha256(history.encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(_memory(np.ascontiguousarray(array)))
    return digest.hexdigest()
