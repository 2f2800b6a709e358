"""`blocks`, a loop over some nodes at a time, and `predict` on it: a layer, or a whole network, in bounded memory."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from mindspore import Tensor, nn
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.arrays import Rows
from unilaunch_graph.blocks import MEMORY, Block
from unilaunch_graph.data.graph_folder import NO_NAMES, Names
from unilaunch_graph.mindspore.part import GraphPart, load_arrays, make_part
from unilaunch_graph.mindspore.ranks import Ranks
from unilaunch_graph.network import prediction as network
from unilaunch_graph.partition.part import Part
from unilaunch_mindspore.linear import widened


def blocks(
    x: Tensor | None, graph: GraphPart | str | Path, *, memory: int = MEMORY, width: int = 0, **options: Any
) -> Iterator[Block[Tensor]]:  # fmt: skip
    """Return an iterator over this rank's nodes in blocks, each with all its in-edges. All ranks must call this.

    As `ug.torch.blocks`, whose arguments these are. `halo`, the segment operations and the layers of this package work
    on `block.part`, the block as the part of a single rank:

        rows = [layer(block.x, block.part)[: block.num_targets] for block in ug.mindspore.blocks(part.x, part)]

    Raises:
        SpecError: *x* is None and the graph has no features.
        ValueError: *x* is no matrix with num_owned rows.
    """
    return network.blocks(MINDSPORE, x, graph, (memory, width), options)


class MindSpore(network.Framework):
    """MindSpore, as `predict` uses it."""

    tensor = Tensor

    @override
    def load(self, name: str | Path, options: Mapping[str, Any]) -> tuple[Part, Ranks]:
        return load_arrays(name, options)

    @override
    def features(self, part: GraphPart) -> Rows:
        features: Rows = part.x.asnumpy()[: part.arrays.num_owned]
        return features.astype(np.float32, copy=False)

    @override
    def alone(self, part: Part) -> GraphPart:
        return make_part(part, Ranks(0, 1, Alone()))

    @override
    def array(self, rows: Tensor) -> NDArray[Any]:
        array: NDArray[Any] = widened(rows).asnumpy()
        return array

    @override
    def function(self, layer: Callable[..., Any]) -> Callable[..., Any]:
        function: Callable[..., Any] = layer.construct if isinstance(layer, nn.Cell) else layer
        return function

    @override
    @contextmanager
    def running(self, layer: Callable[..., Any], *, on_block: bool) -> Iterator[None]:
        """MindSpore tells nobody which cells a function calls: those that it names are looked at."""
        called: list[Any] = [layer]
        if isinstance(layer, FunctionType):
            names = inspect.getclosurevars(layer)
            called = [*names.nonlocals.values(), *names.globals.values()]
        for cell in called:
            if isinstance(cell, nn.Cell) and any(inner.training for _, inner in cell.cells_and_names()):
                raise SpecError(f"predict: {network.name_of(cell)} is in training mode: call set_train(False) before")
        yield

    @override
    @contextmanager
    def counting(self) -> Iterator[list[int]]:
        """MindSpore tells nobody what it makes."""
        yield []


MINDSPORE = MindSpore()


def predict(
    model: Callable[..., Any] | Sequence[Callable[..., Any]],
    graph: GraphPart | str | Path,
    output: Path | str | None = None,
    *,
    memory: int = MEMORY,
    names: Names = NO_NAMES,
    **options: Any,
) -> Any:
    """Return a network's output for this rank's nodes, and write the output for all nodes. All ranks must call this.

    As `ug.torch.predict`, whose arguments these are, with a `CellList` in place of a `ModuleList`. Cells must be in
    evaluation mode (`set_train(False)`). A block takes twice as many numbers for a row or edge as a layer gets, since
    MindSpore does not tell what the layer makes. The row that a part without edges has more is left out.

    Raises:
        SpecError: A layer is not exact on a block, or is in training mode; the message names it.
        ValueError: A network as a whole returns another number of rows than of owned nodes.
        InputError: On rank 0: *output* cannot be written, or has another ending.
        PluginError: On rank 0: pyarrow, which writes .parquet, is not installed.
    """
    layers = list(model) if isinstance(model, nn.CellList) else model
    scores, embeddings = network.predict(MINDSPORE, layers, graph, network.Output(output, names, memory), options)
    tensor = Tensor.from_numpy(np.asarray(scores))
    return tensor if embeddings is None else (tensor, Tensor.from_numpy(np.asarray(embeddings)))
