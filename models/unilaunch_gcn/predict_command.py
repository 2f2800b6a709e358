"""`unilaunch predict`: scores, classes and embeddings of every node, from the model that a run has left."""

import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, ValidationError
from typing_extensions import override

from unilaunch.errors import InputError, SpecError, say_warning
from unilaunch.interfaces.command import Command
from unilaunch.spec.run_spec import Spec

if TYPE_CHECKING:
    from unilaunch.rank.current import Member
    from unilaunch_gcn.spec import GcnSpec
    from unilaunch_graph.partition.part import Part

#: What decides the training, but not how its weights are applied; a model names its precision.
_OF_TRAINING = {"seed", "lr", "weight_decay", "dropout", "precision"}


class PredictSpec(Spec):
    """Which model, on which graph."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)
    folder: Path = Field(default=Path("log_output"), description="the output folder of a run of the model gcn")
    dataset: str | None = Field(default=None, description="another graph with the same features; default: the run's")
    data_dir: Path | None = Field(default=None, description="folder of data sets; default: the run's")
    embeddings: bool = Field(default=False, description="write the rows that enter the last layer too")
    output: Path = Field(
        default=Path("predictions.npz"), description="the file that is written: .npz, .npy, .csv or .parquet"
    )


class PredictCommand(Command):
    """Read a run's model and write what it says of every node, on one process or, under mpirun, on several."""

    help = "scores, classes and embeddings of every node, from the model that a run has left"
    examples = (
        "unilaunch predict log_output --output predictions.npz",
        "mpirun -n 4 python -m unilaunch predict log_output --dataset graph.npz --embeddings",
    )
    spec = PredictSpec

    @override
    def run(self, options: PredictSpec) -> int:
        from unilaunch_gcn.checkpoint import BEST, DIRECTED, INPUTS, has_val_loss, load_weights, model_file
        from unilaunch_gcn.options import refuse_negative_weights, takes_edges_as_given
        from unilaunch_graph.prediction_file import refuse_no_predictions

        refuse_no_predictions(options.output, "--output ")
        trained, seed = _trained(options)
        file = model_file(trained.checkpoint_dir or options.folder / "checkpoints")
        parameters, history = load_weights(file)
        decided = history["decided"]
        _refuse_others(file, decided, trained, seed, options.folder)
        changed = {
            "precision": decided["precision"],
            "split_seed": _split_seed(options, trained, decided),
            "owner": None,
        }
        trained = trained.model_copy(update=changed)
        if options.embeddings and trained.layers == 1:
            raise SpecError("--embeddings: the network has one layer, so there is nothing but scores")
        from unilaunch.rank.current import join
        from unilaunch_graph.loading import part_of

        member = join("cpu")
        as_given = takes_edges_as_given(trained)
        part = part_of(member, trained, as_given=as_given, check=partial(refuse_negative_weights, trained))
        if not options.dataset and decided.get(DIRECTED, part.is_directed) != part.is_directed:
            raise InputError(
                f"{file} was trained with other --edges than the spec in {options.folder} says: name the output folder "
                "of the model's run"
            )
        if not options.dataset and part.inputs_sha256 != decided[INPUTS]:
            raise InputError(
                f"the edges or features of {trained.dataset} have another content than when {file} was trained: "
                f"restore them, or say that you mean these with --dataset {trained.dataset}"
            )
        part = _as_trained(part, trained, parameters, decided)
        if member.world.rank == 0 and file.name != BEST and has_val_loss(history["evaluations"]):
            say_warning(f"{file.parent}: the best model, {BEST}, is not there: {file.name} is taken, the last one")
        _predict(options, trained, parameters, part, member)
        return 0


def _trained(options: PredictSpec) -> "tuple[GcnSpec, int]":
    """Return the options of the run, with what the user changes, and its seed."""
    from unilaunch_gcn.spec import GcnSpec
    from unilaunch_graph.data.sources import WORDS

    path = options.folder / "spec.json"
    changed = {name: value for name in ("dataset", "data_dir") if (value := getattr(options, name)) is not None}
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
        told = _where_it_ran(spec["options"], Path(spec["started_in"]))
        if options.dataset and told["normalize_features"] is None:  # else the other name would decide
            changed["normalize_features"] = told["dataset"] in WORDS
        return GcnSpec.model_validate({**told, **changed}), int(spec["seed"])
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}: expected the output folder of a run") from None
    except (ValueError, KeyError, TypeError, ValidationError):
        raise InputError(f"{path}: expected the spec of a run of the model gcn") from None


def _refuse_others(file: Path, decided: Mapping[str, Any], trained: "GcnSpec", seed: int, folder: Path) -> None:
    """Refuse a model that is of another run, or that the options in the run's spec would apply otherwise.

    Runs may share a --checkpoint-dir. A run's own folder holds its own models, but the spec may be of a later run whose
    --resume was refused: an option that only the training depends on has then no effect.

    Raises:
        InputError: It is.
    """
    from unilaunch_gcn.checkpoint import chosen, differing

    expected = chosen(trained, seed)
    for name in differing(expected, decided):
        if trained.checkpoint_dir or name not in _OF_TRAINING:
            raise InputError(
                f"{file} is of another training than the spec in {folder}: its {name} is {decided.get(name)!r}, not "
                f"{expected[name]!r}: one of them has been replaced since: name the output folder of the model's run, "
                "or go on with that run there (--resume)"
            )


def _split_seed(options: PredictSpec, trained: "GcnSpec", decided: Mapping[str, Any]) -> int:
    """Return the seed of the split: the run's for its own graph; another one may bring a split, and is given none."""
    from unilaunch_graph.data.sources import SOURCES, open_dataset

    seed = trained.split_seed
    if not seed or options.dataset is None:
        return seed
    if trained.dataset in SOURCES:
        return 0
    found = open_dataset(trained.dataset, trained.data_dir, trained.mirror, seed, trained.normalize_features)
    return seed if found.sha256 == decided["data_sha256"] else 0


def _where_it_ran(told: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a run's options, with relative paths that exist in the folder where it was started as absolute ones."""
    from unilaunch_graph.data.sources import SOURCES

    paths = {name: told[name] for name in ("data_dir", "partition_dir", "checkpoint_dir") if told[name] is not None}
    if told["dataset"] not in SOURCES:
        paths["dataset"] = told["dataset"]
    return told | {name: str(folder / path) for name, path in paths.items() if os.path.lexists(folder / path)}


def _as_trained(part: "Part", trained: "GcnSpec", parameters: dict[str, Any], decided: Mapping[str, Any]) -> "Part":
    """Return the part with the model's task and width; its own labels, if it has any, say nothing of predictions.

    Raises:
        InputError: The data set has other features.
    """
    from dataclasses import replace

    from unilaunch_gcn.checkpoint import TASK
    from unilaunch_graph.data.labels import Task, blank_labels

    width_in = parameters["layers.0.weight"].shape[0]
    width_out = parameters[f"layers.{trained.layers - 1}.weight"].shape[1]
    if part.num_features != width_in:
        raise InputError(f"{trained.dataset}: {part.num_features} features, but the model was trained on {width_in}")
    labels = blank_labels(part.num_owned, Task(decided[TASK]), width_out)
    return replace(part, num_classes=width_out, labels=labels)


def _predict(
    options: PredictSpec, trained: "GcnSpec", parameters: dict[str, Any], part: "Part", member: "Member"
) -> None:
    import numpy as np

    from unilaunch_gcn.checkpoint import named
    from unilaunch_gcn.host import HostNetwork, host_problem
    from unilaunch_gcn.layers import NetworkConfig, plan_layers, views
    from unilaunch_gcn.tensors import HostArrays
    from unilaunch_graph.exchange.meter import Meter
    from unilaunch_graph.prediction_file import names_of, save_predictions

    exact = trained.model_copy(update={"dropout": 0.5})  # with dropout no layer is made ahead
    config = NetworkConfig.of(exact, plan_layers(exact, part.num_features, part.num_classes), 0)
    collectives = member.collectives()
    network = HostNetwork(host_problem(collectives, member.placement.threads, config, part, Meter()), HostArrays())
    for (name, _), view in zip(named(config.layers), views(network.flat, config.layers), strict=True):
        view[...] = parameters[name]
    embeddings, scores = None, None
    for rows in network.outputs(views(network.flat, config.layers)):
        embeddings, scores = scores, rows.astype(np.float32, copy=False)
    output = np.asarray(scores), np.asarray(embeddings) if options.embeddings else None
    save_predictions(options.output, part, output, collectives, names_of(trained.dataset))
    if member.world.rank == 0:
        sys.stdout.write(f"{options.output}\n")
