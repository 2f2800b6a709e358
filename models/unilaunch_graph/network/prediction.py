"""`predict` on either framework: the output of a network for every node, whole or layer by layer in bounded memory."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any, TypeVar

from unilaunch.errors import SpecError
from unilaunch_graph.arrays import Rows
from unilaunch_graph.aside import refuse_no_file
from unilaunch_graph.exchange.gather import save_rows
from unilaunch_graph.inference import Layer, infer
from unilaunch_graph.network.checks import check_rows
from unilaunch_graph.network.part import PartFields
from unilaunch_graph.partition.part import Part

#: A member of a list of layers, or a whole model.
Callee = Callable[..., Any]
Network = TypeVar("Network")
Output = TypeVar("Output")


class Predictor(ABC):
    """The part of `predict` that depends on the framework.

    Args:
        options: Those of `load`, where the graph is a name.
    """

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
        """Return the model's output for the owned nodes, as a tensor."""

    @abstractmethod
    def array(self, rows: Any) -> Rows:
        """Return a tensor as an array, 16-bit numbers as float32."""

    @abstractmethod
    def step(self, layers: Sequence[Callee]) -> Layer:
        """Return layers that share one step along the edges as a function of a block of nodes."""

    @abstractmethod
    def num_arguments(self, layer: Callee) -> int:
        """Return how many arguments *layer* is called with; 1: it takes rows alone."""


def predict(
    use: Predictor, model: Callee | Sequence[Callee], graph: Any, output: Path | str | None, memory: int
) -> Rows:
    """Return the rows of the owned nodes, and write those of all nodes; the arguments are those of `ug.torch.predict`.

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
    if isinstance(model, Sequence):
        given = replace(part, features=use.features(graph)) if is_part else part
        steps = [use.step(together) for together in _group(use, model)]
        with TemporaryDirectory(prefix="unilaunch-") as folder:  # a mapped file stays readable while it is referenced
            rows = infer(given, ranks.collectives, steps, Path(folder), memory)
    else:
        output_rows = use.whole(model, graph)
        check_rows(output_rows, graph.num_owned, "num_owned")
        rows = use.array(output_rows)[: part.num_owned]  # in MindSpore a part may have a row more
    if output is not None:
        save_rows(Path(output), part, {"scores": rows}, ranks.collectives)
    return rows


def _refuse_strange(options: Mapping[str, Any], model: Callee | Sequence[Callee], *, is_part: bool) -> None:
    is_list = isinstance(model, Sequence)
    if not is_list and not is_part:
        raise SpecError("predict: a whole model needs a part of tensors: predict(model, ug.load(name)); or give layers")
    if is_list and not model:
        raise SpecError("predict: the list of layers is empty")
    if options and is_part:
        raise SpecError(f"predict: {next(iter(options))!r} is no argument of predict; options of `load` go with a name")


def _group(use: Predictor, layers: Sequence[Callee]) -> list[list[Callee]]:
    """Return the layers, each that takes edges with those behind it that take rows alone: they share one pass."""
    groups: list[list[Callee]] = []
    for layer in layers:
        if not groups or use.num_arguments(layer) > 1:
            groups.append([])
        groups[-1].append(layer)
    return groups


def arguments_of(layer: Callee, function: Callee) -> dict[str, bool] | None:
    """Return whether each argument has a default value, by name; None if Python has no signature of the function.

    Args:
        layer: What the user gave, for the message.
        function: What is called; an argument that a `partial` names has its value.

    Raises:
        SpecError: It needs an argument that can be given by name alone.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    said = function.keywords if isinstance(function, partial) else {}
    no_name = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    found = [one for one in parameters if one.kind not in no_name and one.name not in said]
    for one in found:
        if one.kind is one.KEYWORD_ONLY and one.default is one.empty:
            raise SpecError(
                f"predict: {name_of(layer)} takes {one.name!r} by name alone: give a function that takes it at a "
                f"place: `lambda x, {one.name}: layer(x, {one.name}={one.name})`"
            )
    return {one.name: one.default is not one.empty for one in found}


def networks_of(model: Callee, kind: type[Network]) -> list[Network]:
    """Return a network of class *kind*, or those that a function names: `lambda x, edge_index: model(...)`."""
    roots: list[Any] = [model]
    if isinstance(model, FunctionType):
        names = inspect.getclosurevars(model)
        roots = [*names.nonlocals.values(), *names.globals.values()]
    return [root for root in roots if isinstance(root, kind)]


def refuse_optional(layer: Callee, names: Iterable[str], needed: Sequence[str]) -> None:
    """Refuse a layer that may be called with an array of the graph or without: how it was trained is not known.

    Args:
        layer: The layer.
        names: Its arguments with a default value that the graph has an array for; without any, it is not refused.
        needed: The names of the arguments that it needs beside rows, for the message.

    Raises:
        SpecError: There is such an argument.
    """
    given = ", ".join(["x", *needed])
    for unclear in names:
        raise SpecError(
            f"predict: {name_of(layer)} may be called with {unclear} or without, and the graph has it: give a function "
            f"that says which: `lambda {given}, {unclear}: layer({given}, {unclear}={unclear})` or "
            f"`lambda {given}: layer({given})`"
        )


def checked(layer: Callee, output: Any, kind: type[Output]) -> Output:
    """Return what *layer* has returned.

    Raises:
        SpecError: It is no tensor of class *kind*.
    """
    if not isinstance(output, kind):
        raise SpecError(
            f"predict: {name_of(layer)} returned a {type(output).__name__}: expected one tensor with a row for each "
            "node: give a function that returns it, such as `lambda x, edge_index: model(x, edge_index)[0]`"
        )
    return output


def name_of(layer: Callee) -> str:
    """Return a layer's name for messages."""
    return str(getattr(layer, "__name__", type(layer).__name__))
