"""`predict` on either framework: the output of a network for every node, whole or layer by layer in bounded memory."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import SpecError
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.arrays import Rows
from unilaunch_graph.blocks import Block, Blocks, block_size, graph_of
from unilaunch_graph.data.edges import EDGE_IDS
from unilaunch_graph.data.graph import Features
from unilaunch_graph.data.graph_folder import NO_NAMES, Names
from unilaunch_graph.network.functions import check_matrix, check_rows
from unilaunch_graph.network.layers import Layer as OurLayer
from unilaunch_graph.network.part import PartFields
from unilaunch_graph.new_files import map_new_file
from unilaunch_graph.partition.part import Part
from unilaunch_graph.prediction_file import names_of, refuse_no_predictions, save_predictions

#: A member of a list of layers, or a whole model.
Callee = Callable[..., Any]
#: What a layer, or a model as a whole, may take beside rows.
ARGUMENTS = ("edge_index", "edge_weight", "edge_attr", "edge_type", "part")
#: Nodes and edges of the graph on which a layer is checked, and the size of its blocks.
_CHECKED = (16, 40, 12)


class Framework(ABC):
    """The part of `predict` that depends on the framework.

    Attributes:
        tensor: The class of the framework's tensors.
    """

    tensor: type[Any]

    @abstractmethod
    def load(self, name: str | Path, options: Mapping[str, Any]) -> tuple[Part, Any]:
        """Return this rank's part as mapped arrays, and the ranks."""

    @abstractmethod
    def features(self, part: Any) -> Features:
        """Return the features of the owned nodes, in float32."""

    @abstractmethod
    def alone(self, part: Part) -> PartFields[Any, Any, Any]:
        """Return the part of a single rank."""

    @abstractmethod
    def function(self, layer: Callee) -> Callee:
        """Return the function whose arguments are those of *layer*."""

    @abstractmethod
    def running(self, layer: Callee, *, on_block: bool) -> AbstractContextManager[Any]:
        """Return what is around a call of *layer*: there is no gradient, and training mode is refused."""

    @abstractmethod
    def counting(self) -> AbstractContextManager[list[int]]:
        """Return what is around calls, and yields a list of the bytes of each tensor that they make."""

    @abstractmethod
    def array(self, rows: Any) -> NDArray[Any]:
        """Return a tensor as an array, 16-bit numbers as float32."""

    def check_device(self, ranks: Any) -> None:  # noqa: B027  (MindSpore has one device)
        """Refuse ranks whose tensors are not in the host's memory."""

    def takes_pair(self, layer: Callee) -> bool:  # noqa: ARG002  (of a framework)
        """Return whether a layer takes rows of sources and rows of targets, and then computes the targets alone."""
        return False


class Output(NamedTuple):
    """Where predictions are written, and how they are made.

    Attributes:
        path: The file; None: none is written.
        names: The names of nodes and classes.
        memory: Bytes of a block.
    """

    path: Path | str | None
    names: Names
    memory: int


def predict(
    use: Framework, model: Callee | Sequence[Callee], graph: Any, output: Output, options: Mapping[str, Any]
) -> tuple[Rows, Rows | None]:
    """Return scores and embeddings of the owned nodes, and write those of all nodes.

    The arguments are those of `ug.torch.predict`. The embeddings are None unless a whole model returns a pair.

    Raises:
        SpecError: A layer is not exact on a block, a whole model is to run on a graph that is not loaded, there is no
            layer, or there are options of `load` beside a part.
        ValueError: A whole model returns another number of rows than of owned nodes.
        InputError: On rank 0: the file cannot be written.
    """
    is_part, names = isinstance(graph, PartFields), output.names
    _refuse_strange(options, model, is_part=is_part)
    part, ranks = _loaded(use, graph, options)
    if output.path is not None and ranks.rank == 0:
        refuse_no_predictions(output.path)
        names = names if is_part or names != NO_NAMES else names_of(graph)
    with TemporaryDirectory(prefix="unilaunch-") as folder:  # a mapped file stays readable while it is referenced
        if isinstance(model, Sequence):
            blocks = Blocks(_with_features("predict", part), ranks.collectives, use.alone)
            scores, embeddings = _by_layers(use, model, blocks, output.memory, Path(folder)), None
        else:
            scores, embeddings = _of_whole(use, model, graph)
        if output.path is not None:
            save_predictions(Path(output.path), part, (scores, embeddings), ranks.collectives, names)
    return scores, embeddings


def blocks(
    use: Framework, x: Any, graph: Any, size: tuple[int, int], options: Mapping[str, Any]
) -> Iterator[Block[Any]]:  # fmt: skip
    """Return the blocks of `ug.torch.blocks`; *size* is its memory and width, *options* are those of `load`."""
    _refuse_options("blocks", options, is_part=isinstance(graph, PartFields))
    part, ranks = _loaded(use, graph, options)
    if x is None:
        rows: Any = _with_features("blocks", part).features
    else:
        check_matrix("blocks", x, part.num_owned)
        rows = use.array(x)
    memory, width = size
    return Blocks(part, ranks.collectives, use.alone).over(rows, block_size(memory, rows.shape[1], width))


def _loaded(use: Framework, graph: Any, options: Mapping[str, Any]) -> tuple[Part, Any]:
    """Return the arrays of a graph, with the features that its tensors have now, and the ranks."""
    part, ranks = (graph.arrays, graph.ranks) if isinstance(graph, PartFields) else use.load(graph, options)
    use.check_device(ranks)
    if isinstance(graph, PartFields) and graph.x is not None:
        return replace(part, features=use.features(graph)), ranks
    return part, ranks


def _with_features(call: str, part: Part) -> Part:
    """Return *part*.

    Raises:
        SpecError: It has no features.
    """
    if not part.num_features:
        raise SpecError(
            f"{call}: the graph has no features (x), which the first layer takes: give rows, or predict a whole model"
        )
    return part


def _refuse_strange(options: Mapping[str, Any], model: Callee | Sequence[Callee], *, is_part: bool) -> None:
    is_list = isinstance(model, Sequence)
    if not is_list and not is_part:
        raise SpecError("predict: a whole model needs a part of tensors: predict(model, ug.load(name)); or give layers")
    if is_list and not model:
        raise SpecError("predict: the list of layers is empty")
    _refuse_options("predict", options, is_part=is_part)


def _refuse_options(call: str, options: Mapping[str, Any], *, is_part: bool) -> None:
    if options and is_part:
        raise SpecError(f"{call}: {next(iter(options))!r} is no argument of {call}; options of `load` go with a name")


def _of_whole(use: Framework, model: Callee, part: PartFields[Any, Any, Any]) -> tuple[Rows, Rows | None]:
    """Return what a model says of the owned nodes: scores and embeddings."""
    given = {name: part if name == "part" else getattr(part, name) for name in ARGUMENTS}
    taken = _taken(use, model, {name for name, value in given.items() if value is not None})
    with use.running(model, on_block=False):
        out = model(part.x, **{parameter: given[name] for parameter, name in taken.items()})
    is_pair = isinstance(out, tuple) and [isinstance(one, use.tensor) for one in out] == [True, True]
    pair = out if is_pair else (_tensor(use, model, out),)
    for rows in pair:
        check_rows(rows, part.num_owned, "num_owned")
    scores, *embeddings = (use.array(rows)[: part.arrays.num_owned] for rows in pair)  # MindSpore's may have one more
    return scores, embeddings[0] if embeddings else None


def _by_layers(use: Framework, layers: Sequence[Callee], blocks: Blocks[Any], memory: int, folder: Path) -> Rows:
    """Return the last layer's output on the owned nodes, mapped from a file in *folder*. All ranks must call this."""
    part = blocks.part
    rows: Any = part.features
    for number, step in enumerate(_steps(use, layers, blocks)):
        if rows.ndim != 2:  # noqa: PLR2004  (nodes and columns)
            raise SpecError(
                f"predict: a layer returned the shape {rows.shape}, and another one follows: expected (nodes, width)"
            )
        size = block_size(memory, rows.shape[1], step.check(rows))
        out: Rows = np.empty(0, np.float32)
        for block in blocks.over(rows, size):
            found = step.apply(block)
            if block.targets.start == 0:
                file = folder / f"rows.{part.index}.{number % 2}.npy"
                out = map_new_file(file, np.dtype(np.float32), (part.num_owned, *found.shape[1:]))
            out[block.targets] = found
        rows = out
    scores: Rows = rows
    return scores


@dataclass(frozen=True)
class _Step:
    """A layer that may take edges, and those behind it that take rows alone: they share one pass over the blocks.

    Attributes:
        use: The framework.
        layers: The layers.
        taken: What the first one takes beside rows, as `_taken` returns it.
        part: This rank's part, whose arrays are like those that the layers get.
        is_weighted: Whether the graph has weights.
    """

    use: Framework
    layers: list[Callee]
    taken: dict[str, str]
    part: Part
    is_weighted: bool

    def apply(self, block: Block[Any], *, is_whole: bool = False) -> Rows:
        """Return the layers' output on the block's targets; *is_whole*: the block is a graph. (num_targets, ...)"""
        first, use = self.layers[0], self.use
        is_pair = not is_whole and block.has_edges and bool(self.taken) and use.takes_pair(first)
        if "edge_weight" in self.taken.values() and not is_whole and not is_pair:
            block = block.with_degrees()
        num_own = max(1, block.num_targets)  # MindSpore computes nothing without a row
        own = block.x[:num_own]
        rows = (block.x, own) if is_pair else block.x if self.taken else own
        with use.running(first, on_block=True):
            out = first(rows, **{parameter: getattr(block, name) for parameter, name in self.taken.items()})
            num_rows = num_own if is_pair or not self.taken else len(block.x)
            if len(_tensor(use, first, out)) != num_rows:
                raise SpecError(
                    f"predict: {name_of(first)} returned {len(out)} rows of {num_rows} nodes: expected one for each"
                )
            out = out[:num_own]
        for layer in self.layers[1:]:
            with use.running(layer, on_block=True):
                out = _tensor(use, layer, layer(out))
        array: Rows = use.array(out)[: block.num_targets].astype(np.float32, copy=False)
        return array

    def check(self, rows: Features) -> int:
        """Apply the layers to a small graph as a whole and to its blocks; return the numbers made for a row or edge.

        The graph's rows and edges are drawn from this rank's; without rows nothing is checked.

        Raises:
            SpecError: The outputs are not the same.
        """
        if not rows.shape[0]:
            return 0
        graph = _small_graph(self.part, rows, is_weighted=self.is_weighted)
        blocks = Blocks(graph, Alone(), self.use.alone)
        (whole,) = blocks.over(graph.features, sum(_CHECKED))
        with self.use.counting() as made:
            expected = self.apply(whole, is_whole=True)
        found = np.concatenate([self.apply(block) for block in blocks.over(graph.features, _CHECKED[2])])
        bound = 1e-3 * np.abs(expected).max(initial=0, where=np.isfinite(expected))
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-3, atol=bound, equal_nan=True):
            raise SpecError(
                f"predict: {' with '.join(map(name_of, self.layers))} gives other rows on blocks of nodes than on a "
                "whole graph: it reads more than each node's in-neighbours, such as neighbours of neighbours or a "
                "statistic of all nodes: give each step along the edges as a layer, to a function around a layer that "
                "normalises by degrees an argument edge_weight, or the whole model in place of a list"
            )
        return sum(made) // (4 * sum(_CHECKED[:2]))


def _steps(use: Framework, layers: Sequence[Callee], blocks: Blocks[Any]) -> list[_Step]:
    """Return the layers, each that takes edges with those behind it that take rows alone."""
    there = {"edge_index", "part", *blocks.part.owned_edge_arrays, *(["edge_weight"] if blocks.is_weighted else [])}
    steps: list[_Step] = []
    for layer in layers:
        taken = _taken(use, layer, there)
        if not steps or taken:
            steps.append(_Step(use, [], taken, blocks.part, blocks.is_weighted))
        steps[-1].layers.append(layer)
    return steps


def _small_graph(part: Part, rows: Features, *, is_weighted: bool) -> Part:
    """Return a small graph, in which some nodes have no edge; its rows and arrays are drawn from this rank's."""
    num_nodes, num_edges, _ = _CHECKED
    draw = np.random.default_rng(0)
    ends = draw.integers(0, num_nodes - 2, (2, num_edges))
    given: Any = rows[draw.integers(0, rows.shape[0], num_nodes)]
    taken = given.toarray() if hasattr(given, "toarray") else given

    def drawn(array: NDArray[Any]) -> NDArray[Any]:
        if not len(array):
            return np.zeros((num_edges, *array.shape[1:]), array.dtype)
        chosen: NDArray[Any] = array[draw.integers(0, len(array), num_edges)]
        return chosen

    arrays = {name: drawn(array) for name, array in part.owned_edge_arrays.items() if name != EDGE_IDS}
    weights = draw.uniform(0.5, 1.5, num_edges).astype(np.float32) if is_weighted else np.empty(0, np.float32)
    scaled = taken * draw.uniform(0.5, 1.5, (num_nodes, 1))  # rows that are all alike would hide a difference
    return graph_of(scaled.astype(np.float32), (ends[0], ends[1]), weights, arrays)


def _taken(use: Framework, layer: Callee, there: Container[str]) -> dict[str, str]:
    """Return what a layer, or a model as a whole, takes beside rows: which of `ARGUMENTS` each parameter stands for.

    The first argument is rows. Each further one is what its name says, the second edge_index if its name says nothing.
    A function whose arguments Python does not know (`torch.relu`) takes rows alone.

    Args:
        use: The framework.
        layer: What the user gave.
        there: Those of `ARGUMENTS` that the graph has.

    Raises:
        SpecError: It needs an argument of another name, or it may take one that the graph has: how it was trained is
            not known.
    """
    try:
        signature = inspect.signature(use.function(layer))
    except ValueError:
        return {}
    said = layer.keywords if isinstance(layer, partial) else {}
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    parameters = [one for one in signature.parameters.values() if one.kind not in variable and one.name not in said]
    taken: dict[str, str] = {}
    for place, one in enumerate(parameters[1:]):
        is_known = one.name in ARGUMENTS
        if one.default is one.empty and (is_known or not place):
            taken[one.name] = one.name if is_known else "edge_index"
        elif one.default is one.empty:
            raise SpecError(
                f"predict: {name_of(layer)} needs the argument {one.name!r}: expected rows, then any of "
                f"{', '.join(ARGUMENTS)}: give a function that names them"
            )
        elif one.name in there and not isinstance(layer, OurLayer):  # ours takes the part's arrays itself
            names = ", ".join(["x", *taken])
            raise SpecError(
                f"predict: {name_of(layer)} may be called with {one.name} or without, and the graph has it: give a "
                f"function that says which: `lambda {names}, {one.name}: layer({names}, {one.name}={one.name})` or "
                f"`lambda {names}: layer({names})`"
            )
        elif one.name == "edge_weight":  # on a block weights of 1 tell degrees
            taken[one.name] = one.name
    return taken


def _tensor(use: Framework, layer: Callee, output: Any) -> Any:
    """Return what *layer* has returned.

    Raises:
        SpecError: It is no tensor.
    """
    if not isinstance(output, use.tensor):
        raise SpecError(
            f"predict: {name_of(layer)} returned a {type(output).__name__}: expected one tensor with a row for each "
            "node, or of a model as a whole a pair of them (scores, embeddings): give a function that returns it, such "
            "as `lambda x, edge_index: model(x, edge_index)[0]`"
        )
    return output


def name_of(layer: Callee) -> str:
    """Return a layer's name for messages."""
    if isinstance(layer, partial):
        return name_of(layer.func)
    return str(getattr(layer, "__name__", type(layer).__name__))
