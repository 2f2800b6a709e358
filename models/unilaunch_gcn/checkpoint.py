"""Checkpoints: the state of a training, from which either framework can go on, on any number of parts."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import OutputError, SpecError
from unilaunch_gcn.arrays import Floats
from unilaunch_gcn.layers import Layer, Parameter
from unilaunch_gcn.spec import GcnSpec

FORMAT = 2
#: The options that decide the curve; the seed is another one.
_DECIDING = (
    "dataset", "split_seed", "use_gdc", "gdc_alpha", "gdc_top_k", "gdc_threshold",
    "normalize_features", "conv", "halo", "layers", "hidden", "bias", "layer_norm", "residual",
    "dropout", "lr", "weight_decay", "precision",
)  # fmt: skip
#: What a parameter's name is followed by in the three rows of numbers.
_ROWS = ("", ".first_moment", ".second_moment")
_NAME = "epoch-{:06d}.safetensors"


@dataclass(frozen=True, slots=True)
class State:
    """A training after an epoch.

    Attributes:
        numbers: All weights, then Adam's first and second moments. (3, num_weights)
        epoch: Number of epochs that have been trained.
        losses: Each epoch's.
        evaluations: As in `result.json`.
        decided: What decides the curve, by option.
    """

    numbers: Floats
    epoch: int
    losses: Sequence[float]
    evaluations: Sequence[Mapping[str, float]]
    decided: Mapping[str, Any] = field(default_factory=dict)


def decides(options: GcnSpec, seed: int) -> dict[str, Any]:
    """Return what decides the curve: a checkpoint is of one training only."""
    told = options.model_dump(mode="json")
    return {"seed": seed, **{name: told[name] for name in _DECIDING}}


def save(folder: Path, state: State, layers: Sequence[Layer], keep: int) -> Path:
    """Write a checkpoint, whole or not at all, remove all but the *keep* newest, and return its file.

    Raises:
        OutputError: It cannot be written; those that are there are left as they are.
    """
    from safetensors.numpy import save as to_bytes

    tensors = _split(state.numbers, layers)
    history = {"epoch": state.epoch, "losses": list(state.losses), "evaluations": list(state.evaluations)}
    told = {"format": FORMAT, "sha256": _checksum(tensors), **history, "decided": dict(state.decided)}
    path = folder / _NAME.format(state.epoch)
    aside = folder / f".{path.name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.write(to_bytes(tensors, {"unilaunch": json.dumps(told)}))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _sync(folder)
        for old in _files(folder)[keep:]:
            old.unlink()
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OutputError(f"checkpoint {path}: cannot be written: {error.strerror}") from None
    return path


def newest(folder: Path, layers: Sequence[Layer]) -> tuple[State | None, list[str]]:
    """Return the newest state that is whole, None if there is none, and a line on each newer one that is not.

    Raises:
        SpecError: It is of a network of other widths.
    """
    damaged: list[str] = []
    for path in _files(folder):
        try:
            return _load(path, layers), damaged
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged.append(f"checkpoint {path} is damaged, an older one is taken: {' '.join(str(error).split())}")
    return None, damaged


def check(state: State, decided: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on with another training.

    Raises:
        SpecError: An option that decides the curve is not what it was.
    """
    for name, value in decided.items():
        if state.decided.get(name) != value:
            raise SpecError(
                f"--resume: the checkpoints in {folder} are of a training with {name}={state.decided.get(name)!r}, "
                f"not {value!r}: take the same options, or another --checkpoint-dir"
            )


def exist(folder: Path) -> bool:
    """Return whether *folder* holds checkpoints."""
    return bool(_files(folder))


def _files(folder: Path) -> list[Path]:
    """Return the checkpoints, newest first; what is being written has another name."""
    return sorted(folder.glob("epoch-*.safetensors"), reverse=True)


def _split(numbers: Floats, layers: Sequence[Layer]) -> dict[str, NDArray[Any]]:
    """Return each parameter, and its two moments, under its name and in its shape."""
    tensors, begin = {}, 0
    for name, parameter in _named(layers):
        for row, what in zip(numbers, _ROWS, strict=True):
            tensors[f"{name}{what}"] = row[begin : begin + parameter.size].reshape(parameter.shape)
        begin += parameter.size
    return tensors


def _named(layers: Sequence[Layer]) -> list[tuple[str, Parameter]]:
    return [
        (f"layers.{depth}.{parameter.name}", parameter)
        for depth, layer in enumerate(layers)
        for parameter in layer.parameters
    ]


def _load(path: Path, layers: Sequence[Layer]) -> State:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            told = json.loads((file.metadata() or {})["unilaunch"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    if told["format"] != FORMAT:
        raise ValueError(f"its format is {told['format']}, expected {FORMAT}")
    if _checksum(tensors) != told["sha256"]:
        raise ValueError("its content is not what was written")
    shapes = {name: array.shape for name, array in tensors.items() if not name.endswith("_moment")}
    expected = {name: parameter.shape for name, parameter in _named(layers)}
    if shapes != expected:
        raise SpecError(
            f"--resume: the checkpoint {path} is of another network: {_told(shapes)}, not {_told(expected)}"
        )
    rows = [np.concatenate([tensors[f"{name}{what}"].ravel() for name in expected]) for what in _ROWS]
    return State(np.stack(rows), int(told["epoch"]), told["losses"], told["evaluations"], told["decided"])


def _told(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in sorted(shapes.items()))


def _checksum(tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
