"""Checkpoints: the state of a training, from which either framework can go on, on any number of parts.

| file | what |
|---|---|
| epoch-000050.safetensors | the state after 50 epochs: weights, Adam's moments, history |
| final.safetensors | the same after the last epoch |
| best.safetensors | the weights with the lowest validation loss, and the history up to them |
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError, OutputError, SpecError
from unilaunch_gcn.layers import Layer, Parameter
from unilaunch_graph.arrays import Floats

if TYPE_CHECKING:
    from unilaunch_gcn.spec import GcnSpec

FORMAT = 3
#: The options that decide the curve; the seed is another one.
_DECIDING = (
    "dataset", "split_seed", "use_gdc", "gdc_alpha", "gdc_top_k", "gdc_threshold",
    "conv", "halo", "layers", "hidden", "bias", "layer_norm", "residual",
    "dropout", "lr", "weight_decay", "precision",
)  # fmt: skip
#: What a parameter's name is followed by in the three rows of numbers.
_ROWS = ("", ".first_moment", ".second_moment")
_NAME, _NAMES = "epoch-{:06d}.safetensors", "epoch-*.safetensors"
FINAL, BEST = "final.safetensors", "best.safetensors"
#: The name under which the content of the data set stands among what decides the curve.
_CONTENT = "data_sha256"
#: The keys of the file's metadata: the history as JSON, and the SHA-256 of that text and of all tensors.
_HISTORY, _CHECKSUM = "unilaunch", "sha256"


@dataclass(frozen=True, slots=True)
class State:
    """A training after an epoch.

    Attributes:
        numbers: All weights, then Adam's first and second moments, unless only weights are kept. (3 or 1, num_weights)
        epoch: Number of epochs that have been trained.
        losses: Each epoch's.
        evaluations: As in `result.json`.
        decided: What decides the curve, by option.
    """

    numbers: Floats
    epoch: int
    losses: Sequence[float]
    evaluations: Sequence[Mapping[str, float | None]]
    decided: Mapping[str, Any] = field(default_factory=dict)


def decides(options: "GcnSpec", seed: int, data_sha256: str) -> dict[str, Any]:
    """Return what decides the curve: a checkpoint is of one training only.

    Args:
        options: What the user chose.
        seed: Seed of everything that is drawn.
        data_sha256: Names the content of the data set.
    """
    told = options.to_json()
    return {"seed": seed, **{name: told[name] for name in _DECIDING}, _CONTENT: data_sha256}


class Writer:
    """Writes the checkpoints of one run. It removes only files that it has written itself.

    Args:
        folder: Where the checkpoints are written. It is made if it is not there.
        layers: The layers of the network.
        keep: How many of this run's checkpoints are kept: the newest.
    """

    def __init__(self, folder: Path, layers: Sequence[Layer], keep: int) -> None:
        self.folder, self.layers, self.keep = folder, layers, keep
        self.written: list[Path] = []

    def save(self, state: State) -> Path:
        """Write a checkpoint, remove this run's oldest ones, and return the file.

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
        aside = self.folder / f".{path.name}.{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                file.write(_to_bytes(state, self.layers))
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
            _sync(self.folder)
        except OSError as error:
            with suppress(OSError):
                aside.unlink()
            raise OutputError(f"checkpoint {path}: cannot be written: {error.strerror}") from None
        return path


def _to_bytes(state: State, layers: Sequence[Layer]) -> bytes:
    from safetensors.numpy import save

    tensors = _split(state.numbers, layers)
    history = {"epoch": state.epoch, "losses": list(state.losses), "evaluations": list(state.evaluations)}
    text = json.dumps({"format": FORMAT, **history, "decided": dict(state.decided)}, allow_nan=False)
    return save(tensors, {_HISTORY: text, _CHECKSUM: _checksum(text, tensors)})


def newest(folder: Path, layers: Sequence[Layer]) -> tuple[State | None, list[str]]:
    """Return the newest state that is whole, None if there is none, and a line on each newer one that is damaged.

    Raises:
        SpecError: It is of a network of other widths.
        InputError: It cannot be read now, or another version of unilaunch wrote it: nothing is known of its content.
    """
    damaged: list[str] = []
    for path in _files(folder):
        try:
            return load(path, layers), damaged
        except OSError as error:
            _refuse_unreadable(path, error)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            damaged.append(f"checkpoint {path} is damaged, an older one is taken: {' '.join(str(error).split())}")
    return None, damaged


def load_weights(path: Path) -> tuple[dict[str, NDArray[Any]], Mapping[str, Any]]:
    """Return the parameters in a checkpoint by name, and what decided its curve.

    Raises:
        InputError: It cannot be read, or is damaged.
    """
    try:
        tensors, told = _read(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: damaged: {' '.join(str(error).split())}") from None
    return {name: array for name, array in tensors.items() if not name.endswith("_moment")}, told["decided"]


def model_file(folder: Path) -> Path:
    """Return the model that a run has left: the best one, else the last one.

    Raises:
        InputError: There is none.
    """
    if (folder / BEST).exists():
        return folder / BEST
    files = _files(folder)
    if not files:
        raise InputError(f"{folder}: no model: a run with --no-save-model leaves none; expected {BEST} or {FINAL}")
    return files[0]


def check(state: State, decided: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on with another training.

    Raises:
        SpecError: An option that decides the curve is not what it was, or the data set has another content.
    """
    for name, value in decided.items():
        before = state.decided.get(name)
        if before == value:
            continue
        if name == _CONTENT:
            raise SpecError(
                f"--resume: the data set {decided.get('dataset')} has another content than when the checkpoints in "
                f"{folder} were written: restore the data set, or start anew with another --checkpoint-dir"
            )
        raise SpecError(
            f"--resume: the checkpoints in {folder} are of a training with {name}={before!r}, "
            f"not {value!r}: take the same options, or another --checkpoint-dir"
        )


def exist(folder: Path) -> bool:
    """Return whether *folder* holds checkpoints.

    Raises:
        InputError: The folder cannot be read.
    """
    return bool(_files(folder))


def _files(folder: Path) -> list[Path]:
    """Return the checkpoints, newest first; what is being written has another name."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  (Path.glob finds nothing in a folder that it cannot read)
    except FileNotFoundError:
        return []
    except OSError as error:
        _refuse_unreadable(folder, error)
    found = {folder / name: _epoch_of(folder / name) for name in names if fnmatch(name, _NAMES) or name == FINAL}
    return sorted(found, key=found.__getitem__, reverse=True)


def _epoch_of(path: Path) -> tuple[int, bool]:
    """Return what checkpoints are ordered by: their epoch, the final one behind an equal; damaged, it is the oldest."""
    if path.name != FINAL:
        return int(re.sub(r"\D", "", path.stem) or 0), True
    try:
        epoch = json.loads(_metadata(path.read_bytes())[_HISTORY])["epoch"]
        return int(epoch), False
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


def _split(numbers: Floats, layers: Sequence[Layer]) -> dict[str, NDArray[Any]]:
    """Return each parameter, and its two moments, under its name and in its shape."""
    tensors, begin = {}, 0
    for name, parameter in _named(layers):
        for row, what in zip(numbers, _ROWS, strict=False):  # without moments where only weights are kept
            tensors[f"{name}{what}"] = row[begin : begin + parameter.size].reshape(parameter.shape)
        begin += parameter.size
    return tensors


def _named(layers: Sequence[Layer]) -> list[tuple[str, Parameter]]:
    return [
        (f"layers.{depth}.{parameter.name}", parameter)
        for depth, layer in enumerate(layers)
        for parameter in layer.parameters
    ]


def load(path: Path, layers: Sequence[Layer]) -> State:
    """Return the state in a file.

    Raises:
        SpecError: It is of a network of other widths.
        InputError: Another version of unilaunch wrote it.
        OSError, ValueError, KeyError, TypeError, RecursionError: It cannot be read, or is damaged.
    """
    tensors, told = _read(path)
    shapes = {name: array.shape for name, array in tensors.items() if not name.endswith("_moment")}
    expected = {name: parameter.shape for name, parameter in _named(layers)}
    if shapes != expected:
        raise SpecError(
            f"--resume: the checkpoint {path} is of another network: {_told(shapes)}, not {_told(expected)}"
        )
    kept = _ROWS if len(tensors) > len(shapes) else _ROWS[:1]
    rows = [np.concatenate([tensors[f"{name}{what}"].ravel() for name in expected]) for what in kept]
    return State(np.stack(rows), int(told["epoch"]), told["losses"], told["evaluations"], told["decided"])


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
    if _CHECKSUM in metadata and _checksum(metadata[_HISTORY], tensors) != metadata[_CHECKSUM]:
        raise ValueError("its content is not what was written")
    told = json.loads(metadata[_HISTORY])
    if told["format"] != FORMAT:
        raise InputError(
            f"--resume: the checkpoint {path} has format {told['format']!r}, of another version of unilaunch; this "
            f"version reads format {FORMAT}: go on with that version, or start anew with another --checkpoint-dir"
        )
    if _CHECKSUM not in metadata:
        raise ValueError("it has no checksum")
    return tensors, told


def parameter_names(layers: Sequence[Layer]) -> list[str]:
    """Return the names of the parameters in a file, in the order of a network's weights."""
    return [name for name, _ in _named(layers)]


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
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
