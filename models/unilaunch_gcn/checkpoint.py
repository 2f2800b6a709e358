"""Checkpoints: the state of a training, from which either framework can go on, on any number of parts.

| file | what |
|---|---|
| epoch-000050.safetensors | the state after 50 epochs: weights, Adam's moments, history |
| final.safetensors | the same after the last epoch |
| best.safetensors | the weights with the lowest validation loss, and the history up to them |
"""

import os
import re
from collections.abc import Mapping, Sequence
from errno import EINVAL, ENOTSUP
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from unilaunch.errors import InputError, OutputError, SpecError
from unilaunch.folder.files import write_whole
from unilaunch_gcn.checkpoint_file import State, content, epoch_of, load, load_weights
from unilaunch_gcn.layers import Layer
from unilaunch_gcn.options import count_heads

if TYPE_CHECKING:
    from unilaunch_gcn.spec import GcnSpec
    from unilaunch_graph.partition.part import Part

__all__ = [
    "BEST", "DIRECTED", "FINAL", "TASK", "State", "Writer",
    "check", "check_best", "chosen", "decides", "differing", "exist", "model_file", "newest",
]  # fmt: skip

#: The options that decide the curve; the seed is another one.
_DECIDING = (
    "dataset", "split_seed", "use_gdc", "gdc_alpha", "gdc_top_k", "gdc_threshold",
    "conv", "halo", "layers", "hidden", "bias", "layer_norm", "residual",
    "dropout", "lr", "weight_decay", "precision",
)  # fmt: skip
_NAME, _NAMES = "epoch-{:06d}.safetensors", re.compile(r"epoch-(\d+)\.safetensors")
FINAL, BEST = "final.safetensors", "best.safetensors"
#: The names under which the content and the task of the data set stand among what decides the curve.
_CONTENT, TASK = "data_sha256", "task"
#: And the content on which a prediction depends: edges and features.
INPUTS = "inputs_sha256"
#: And whether sage or gat has kept the directions of edges. Older checkpoints lack it: sage did not, gat always did.
DIRECTED = "directed_edges"
_DATASET = "dataset"


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
    return [
        name for name, value in decided.items() if name != _DATASET and before.get(name, _older(name, decided)) != value
    ]


def _older(name: str, decided: Mapping[str, Any]) -> Any:
    """Return what an older checkpoint, which does not have the name, stands for."""
    if name != DIRECTED:
        return decided[name] if name == INPUTS else None
    return False if decided["conv"] == "sage" else decided[name]


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


def exist(folder: Path) -> bool:
    """Return whether *folder* holds checkpoints or the best model of a run.

    Raises:
        InputError: The folder cannot be read.
    """
    return any(name in {FINAL, BEST} or _NAMES.fullmatch(name) for name in _names(folder))


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
        return epoch_of(path.read_bytes()), False
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
