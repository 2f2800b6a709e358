"""`predict`: the output of a network for every node, whole or layer by layer in bounded memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor, nn
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch_graph.arrays import Rows
from unilaunch_graph.inference import MEMORY
from unilaunch_graph.inference import Layer as BlockLayer
from unilaunch_graph.mindspore.blocks import Step
from unilaunch_graph.mindspore.loading import load_arrays
from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.mindspore.ranks import Ranks
from unilaunch_graph.network import prediction as network
from unilaunch_graph.partition.part import Part
from unilaunch_mindspore.linear import widened


def predict(
    model: Callable[..., Any] | Sequence[Callable[..., Any]],
    graph: GraphPart | str | Path,
    output: Path | str | None = None,
    *,
    memory: int = MEMORY,
    **options: Any,
) -> Any:
    """Return a network's output for this rank's nodes, and write the output for all nodes. All ranks must call this.

    A network as a whole is called once, as in training; its memory grows with the part. A list of its layers is applied
    layer by layer to blocks of nodes, in float32; what lies between two layers are files in the folder for temporary
    files (TMPDIR): room for two layers' rows and those of the halo. Each member of the list is one step along the
    edges, or takes rows alone (an activation, a normalisation with running statistics). A member is called with rows,
    and with what its further arguments without a default value are named after: part, edge_index, edge_weight,
    edge_attr or edge_type. If one of these has a default value, and the graph has it, it is refused, but for this
    package's layers, which take it from the part. In a list these are of the block: a part of one rank, on which
    `halo`, the segment operations and the layers of this package work. Cells must be in evaluation mode
    (`set_train(False)`).

    Args:
        model: The network, or a list of its layers, as a `CellList` is one. A network as a whole may return a pair:
            scores and embeddings.
        graph: This rank's part; for a list of layers also what `load` takes as a name: then the part stays in mapped
            files, and no tensor of all its edges is made.
        output: The .npz file that rank 0 writes, in the user's order, with the arrays of `unilaunch predict`: "scores"
            (num_nodes, width); "classes", if there is a score for each class or label of the graph: (num_nodes,) int64,
            the class of the highest score, or (num_nodes, width) uint8, the labels with a score above 0; "split"
            (num_nodes,) uint8: 0 none, 1 training, 2 validation, 3 test; "embeddings" (num_nodes, w), if the network as
            a whole returns a pair. No rank holds more of another rank's rows than some. None: none is written.
        memory: Bytes that the rows and the messages of a block may take.
        **options: Beside a name: fields of `unilaunch_graph.spec.DataSpec`, as in `load`.

    Returns:
        The scores of the owned nodes, without the row that a part without edges has more; of a list of layers float32,
        mapped from a file. If the network as a whole returns a pair: the scores and the embeddings. (nodes, width)

    Raises:
        SpecError: A layer is not exact on a block, is in training mode, or needs another argument; the message names
            it.
        ValueError: A network as a whole returns another number of rows than of owned nodes.
        InputError: On rank 0: *output* cannot be written.
    """
    layers = list(model) if isinstance(model, nn.CellList) else model
    scores, embeddings = network.predict(_MindSpore(options), layers, graph, output, memory)
    tensor = Tensor.from_numpy(np.asarray(scores))
    return tensor if embeddings is None else (tensor, Tensor.from_numpy(np.asarray(embeddings)))


class _MindSpore(network.Predictor):
    tensor = Tensor

    @override
    def load(self, name: str | Path) -> tuple[Part, Ranks]:
        return load_arrays(name, self.options)

    @override
    def features(self, part: GraphPart) -> Rows:
        features: Rows = part.x.asnumpy()[: part.arrays.num_owned]
        return features.astype(np.float32, copy=False)

    @override
    def whole(self, model: Any, part: GraphPart) -> Any:
        return _call(model, part.x, part)

    @override
    def array(self, rows: Tensor) -> Rows:
        array: Rows = widened(rows).asnumpy()
        return array

    @override
    def step(self, layers: Sequence[Callable[..., Any]]) -> BlockLayer:
        return Step(layers, _call_layer)

    @override
    def arguments(self, layer: Callable[..., Any]) -> network.Arguments:
        return _arguments_of(layer)


def _call_layer(layer: Any, rows: Tensor, part: GraphPart) -> Tensor:
    return network.checked(layer, _call(layer, rows, part), Tensor)


def _call(layer: Any, rows: Tensor, part: GraphPart) -> Any:
    """Return the layer's output.

    Raises:
        SpecError: It is in training mode, or its arguments are not clear.
    """
    for cell in network.networks_of(layer, nn.Cell):
        if any(inner.training for _, inner in cell.cells_and_names()):
            raise SpecError(f"predict: {network.name_of(cell)} is in training mode: call set_train(False) before")
    return network.call(layer, _arguments_of(layer), rows, network.given_by(part))


def _arguments_of(layer: Any) -> network.Arguments:
    return network.find_arguments(layer, layer.construct if isinstance(layer, nn.Cell) else layer)
