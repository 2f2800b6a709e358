"""The content of a checkpoint's file: parameters and moments by name, and the history as text. Nothing is executed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError, SpecError
from unilaunch_gcn.layers import Layer, Parameter
from unilaunch_graph.arrays import Floats

FORMAT = 3
#: What a parameter's name is followed by in the three rows of numbers.
_ROWS = ("", ".first_moment", ".second_moment")
#: The keys of the file's metadata: the history as JSON, and the SHA-256 of that text and of all tensors.
_HISTORY, _CHECKSUM = "unilaunch", "sha256"
_ALIGNMENT = 8  # bytes, of where the numbers begin


def epoch_of(content: bytes) -> int:
    """Return after how many epochs a file was written; ValueError, KeyError or TypeError if it is damaged."""
    return int(json.loads(_metadata(content)[_HISTORY])["epoch"])


def has_val_loss(evaluations: Sequence[Mapping[str, float | None]]) -> bool:
    """Return whether one of the evaluations was of validation nodes."""
    return any(one["val_loss"] is not None for one in evaluations)


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
    expected = {name: parameter.shape for name, parameter in _named(layers)}
    if shapes != expected:
        raise SpecError(
            f"--resume: the checkpoint {path} is of another network: {_told(shapes)}, not {_told(expected)}"
        )
    kept = _ROWS if len(tensors) > len(shapes) else _ROWS[:1]
    rows = [np.concatenate([tensors[f"{name}{what}"].ravel() for name in expected]) for what in kept]
    counted = told.get("counted", ())  # of an earlier version: none of its evaluations is counted
    return State(rows, int(told["epoch"]), told["losses"], told["evaluations"], told["decided"], counted)


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


def parameter_names(layers: Sequence[Layer]) -> list[str]:
    """Return the names of the parameters in a file, in the order of a network's weights."""
    return [name for name, _ in _named(layers)]


def _split(numbers: Sequence[Floats], layers: Sequence[Layer]) -> dict[str, NDArray[Any]]:
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
