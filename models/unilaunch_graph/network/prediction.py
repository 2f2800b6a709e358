"""`predict` on either framework: the output of a network for every node, whole or layer by layer in bounded memory."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import SpecError
from unilaunch_graph.arrays import Rows
from unilaunch_graph.aside import refuse_no_file
from unilaunch_graph.data.labels import Task, predicted_classes
from unilaunch_graph.exchange.gather import save_rows
from unilaunch_graph.inference import Layer, infer
from unilaunch_graph.network.checks import check_rows
from unilaunch_graph.network.layer import Layer as OurLayer
from unilaunch_graph.network.part import PartFields
from unilaunch_graph.new_file import map_new_file
from unilaunch_graph.partition.part import Part

#: A member of a list of layers, or a whole model.
Callee = Callable[..., Any]
Network = TypeVar("Network")
Output = TypeVar("Output")
#: What a layer, or a model as a whole, may take beside rows.
ARGUMENTS = ("edge_index", "edge_weight", "edge_attr", "edge_type", "part")
#: Rows whose classes are found at a time.
_BLOCK = 1 << 14


class Arguments(NamedTuple):
    """Which of `ARGUMENTS` a layer needs, in its order, and which have a default value."""

    needed: list[str]
    optional: list[str]


class Predictor(ABC):
    """The part of `predict` that depends on the framework.

    Attributes:
        tensor: The class of the framework's tensors.

    Args:
        options: Those of `load`, where the graph is a name.
    """

    tensor: type[Any]

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    @abstractmethod
    def load(self, name: str | Path) -> tuple[Part, Any]:
        """Return this rank's part as mapped arrays, and the ranks."""

    @abstractmethod
    def features(self, part: Any) -> Rows:
        """Return the features of the owned nodes, in float32."""

    @abstractmethod
    def whole(self, model: Callee, part: Any) -> Any:
        """Return the model's output for the owned nodes: a tensor, or a pair of tensors."""

    @abstractmethod
    def array(self, rows: Any) -> Rows:
        """Return a tensor as an array, 16-bit numbers as float32."""

    @abstractmethod
    def step(self, layers: Sequence[Callee]) -> Layer:
        """Return layers that share one step along the edges as a function of a block of nodes."""

    @abstractmethod
    def arguments(self, layer: Callee) -> Arguments:
        """Return what *layer* takes beside rows."""


def predict(
    use: Predictor, model: Callee | Sequence[Callee], graph: Any, output: Path | str | None, memory: int
) -> tuple[Rows, Rows | None]:
    """Return scores and embeddings of the owned nodes, and write those of all nodes.

    The arguments are those of `ug.torch.predict`. The embeddings are None unless a whole model returns a pair.

    Raises:
        SpecError: A layer is not exact on a block, a whole model is to run on a graph that is not loaded, there is no
            layer, or there are options of `load` beside a part.
        ValueError: A whole model returns another number of rows than of owned nodes.
        InputError: On rank 0: *output* cannot be written.
    """
    is_part = isinstance(graph, PartFields)
    _refuse_strange(use.options, model, is_part=is_part)
    part, ranks = (graph.arrays, graph.ranks) if is_part else use.load(graph)
    if output is not None and ranks.rank == 0:
        refuse_no_file(output)
    with TemporaryDirectory(prefix="unilaunch-") as folder:  # a mapped file stays readable while it is referenced
        if isinstance(model, Sequence):
            _refuse_without_features(part)
            given = replace(part, features=use.features(graph)) if is_part else part
            steps = [use.step(together) for together in _group(use, model)]
            scores, embeddings = infer(given, ranks.collectives, steps, Path(folder), memory), None
        else:
            first, second = scores_of(model, use.whole(model, graph), use.tensor)
            scores, embeddings = _owned(use, first, graph), None if second is None else _owned(use, second, graph)
        if output is not None:
            arrays = {"scores": scores, **_classes(part, scores, Path(folder)), "split": np.asarray(part.split)}
            if embeddings is not None:
                arrays["embeddings"] = embeddings
            save_rows(Path(output), part, arrays, ranks.collectives)
    return scores, embeddings


def _owned(use: Predictor, rows: Any, graph: Any) -> Rows:
    """Return a whole model's rows as an array: in MindSpore a part may have a row more."""
    check_rows(rows, graph.num_owned, "num_owned")
    return use.array(rows)[: graph.arrays.num_owned]


def _classes(part: Part, scores: Rows, folder: Path) -> dict[str, NDArray[Any]]:
    """Return the classes of the owned nodes in a mapped file, if there is a score for each class or label."""
    width = scores.shape[1] if scores.ndim == 2 else 0  # noqa: PLR2004  (nodes and columns)
    fits = width >= part.num_classes > 0 if part.task is Task.CLASSES else width == part.num_classes
    first = predicted_classes(part.task, scores[:_BLOCK]) if fits else None
    if first is None:
        return {}
    classes = map_new_file(folder / "classes.npy", first.dtype, (len(scores), *first.shape[1:]))
    for begin in range(0, len(scores), _BLOCK):
        span = slice(begin, begin + _BLOCK)
        classes[span] = predicted_classes(part.task, scores[span])
    return {"classes": classes}


def _refuse_strange(options: Mapping[str, Any], model: Callee | Sequence[Callee], *, is_part: bool) -> None:
    is_list = isinstance(model, Sequence)
    if not is_list and not is_part:
        raise SpecError("predict: a whole model needs a part of tensors: predict(model, ug.load(name)); or give layers")
    if is_list and not model:
        raise SpecError("predict: the list of layers is empty")
    if options and is_part:
        raise SpecError(f"predict: {next(iter(options))!r} is no argument of predict; options of `load` go with a name")


def _refuse_without_features(part: Part) -> None:
    if not part.num_features:
        raise SpecError(
            "predict: the graph has no features (x), which the first of a list of layers takes: give the model as a "
            "whole, and a part"
        )


def _group(use: Predictor, layers: Sequence[Callee]) -> list[list[Callee]]:
    """Return the layers, each that takes edges with those behind it that take rows alone: they share one pass."""
    groups: list[list[Callee]] = []
    for layer in layers:
        if not groups or use.arguments(layer).needed:
            groups.append([])
        groups[-1].append(layer)
    return groups


def find_arguments(layer: Callee, function: Callee, second: str = "") -> Arguments:
    """Return which of `ARGUMENTS` a layer, or a model as a whole, takes beside rows.

    The first argument is rows, whatever its name is. A function whose arguments Python does not know (`torch.relu`)
    takes rows alone.

    Args:
        layer: What the user gave, for the message.
        function: What is called; an argument that a `partial` names has its value.
        second: What a second argument of another name is; "": it is refused.

    Raises:
        SpecError: It needs an argument that can be given by name alone, one of another name, or none.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return Arguments([], [])
    said = function.keywords if isinstance(function, partial) else {}
    no_name = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    found = [one for one in parameters if one.kind not in no_name and one.name not in said]
    required = [one for one in found if one.default is one.empty]
    for one in required:
        if one.kind is one.KEYWORD_ONLY:
            raise SpecError(
                f"predict: {name_of(layer)} takes {one.name!r} by name alone: give a function that takes it at a "
                f"place: `lambda x, {one.name}: layer(x, {one.name}={one.name})`"
            )
    needed = [one.name for one in required]
    if second and needed[1:2] and needed[1] not in ARGUMENTS:
        needed[1] = second
    if not needed or (unknown := [name for name in needed[1:] if name not in ARGUMENTS]):
        given = f"the argument {unknown[0]!r}" if needed else "0 arguments"
        raise SpecError(
            f"predict: {name_of(layer)} needs {given}: expected rows, then any of {', '.join(ARGUMENTS)}: give a "
            "function that names them"
        )
    if isinstance(layer, OurLayer):  # it takes the part's arrays itself
        return Arguments(needed[1:], [])
    return Arguments(needed[1:], [one.name for one in found if one.name in ARGUMENTS and one not in required])


def given_by(part: Any) -> dict[str, Any]:
    """Return the `ARGUMENTS` of a layer on *part*, by name; None: the graph has none."""
    return {name: part if name == "part" else getattr(part, name) for name in ARGUMENTS}


def call(layer: Callee, arguments: Arguments, rows: Any, given: Mapping[str, Any]) -> Any:
    """Return the output of *layer* for rows, and for those of *given* that it needs.

    Raises:
        SpecError: It may be called with something that the graph has or without: how it was trained is not known.
    """
    names = ", ".join(["x", *arguments.needed])
    for unclear in arguments.optional:
        if given[unclear] is not None:
            raise SpecError(
                f"predict: {name_of(layer)} may be called with {unclear} or without, and the graph has it: give a "
                f"function that says which: `lambda {names}, {unclear}: layer({names}, {unclear}={unclear})` or "
                f"`lambda {names}: layer({names})`"
            )
    return layer(rows, *(given[name] for name in arguments.needed))


def networks_of(model: Callee, kind: type[Network]) -> list[Network]:
    """Return a network of class *kind*, or those that a function names: `lambda x, edge_index: model(...)`."""
    roots: list[Any] = [model]
    if isinstance(model, FunctionType):
        names = inspect.getclosurevars(model)
        roots = [*names.nonlocals.values(), *names.globals.values()]
    return [root for root in roots if isinstance(root, kind)]


def checked(layer: Callee, output: Any, kind: type[Output]) -> Output:
    """Return what *layer* has returned.

    Raises:
        SpecError: It is no tensor of class *kind*.
    """
    if not isinstance(output, kind):
        raise SpecError(
            f"predict: {name_of(layer)} returned a {type(output).__name__}: expected one tensor with a row for each "
            "node, or of a model as a whole a pair of them (scores, embeddings): give a function that returns it, such "
            "as `lambda x, edge_index: model(x, edge_index)[0]`"
        )
    return output


def scores_of(model: Callee, output: Any, kind: type[Output]) -> tuple[Output, Output | None]:
    """Return what a whole model has returned as scores and embeddings; None: it returns scores alone.

    Raises:
        SpecError: It is neither a tensor of class *kind* nor a pair of such.
    """
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(one, kind) for one in output):  # noqa: PLR2004
        scores, embeddings = output
        return scores, embeddings
    return checked(model, output, kind), None


def name_of(layer: Callee) -> str:
    """Return a layer's name for messages."""
    return str(getattr(layer, "__name__", type(layer).__name__))
