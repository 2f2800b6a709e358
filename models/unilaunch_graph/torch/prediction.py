"""`predict`: the output of a network for every node, whole or layer by layer in bounded memory."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch_graph.arrays import Rows
from unilaunch_graph.inference import MEMORY, Layer
from unilaunch_graph.network import prediction as network
from unilaunch_graph.partition.part import Part
from unilaunch_graph.torch.blocks import apply_to_block, arguments_of
from unilaunch_graph.torch.loading import load_arrays
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.ranks import Ranks


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
    edges, or takes rows alone (an activation, a normalisation with running statistics). A network or a member is called
    with rows, then with those of edge_index, edge_weight, edge_attr and edge_type that its arguments are named after,
    and a network as a whole with part. If such an argument has a default value, and the graph has the array, it is
    refused, but for this package's layers, which take it from the part. Modules must be in evaluation mode; they may be
    distributed.

    Args:
        model: The network (`ug.torch.distribute` has made it exact on parts), or a list of its layers, as a
            `ModuleList` is one. A network as a whole may return a pair: scores and embeddings.
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
        The scores of the owned nodes as a tensor; of a list of layers float32, mapped from a file. (num_owned, width)
        If the network as a whole returns a pair: the scores and the embeddings. (num_owned, width), (num_owned, w)

    Raises:
        SpecError: A layer is not exact on a block, or is in training mode; the message names it. Or the part is not in
            the host's memory.
        ValueError: A network as a whole returns another number of rows than of owned nodes.
        InputError: On rank 0: *output* cannot be written.
    """
    layers = list(model) if isinstance(model, torch.nn.ModuleList) else model
    scores, embeddings = network.predict(_Torch(options), layers, graph, output, memory)
    tensor = torch.from_numpy(scores)
    return tensor if embeddings is None else (tensor, torch.from_numpy(embeddings))


class _Torch(network.Predictor):
    tensor = torch.Tensor

    @override
    def load(self, name: str | Path) -> tuple[Part, Ranks]:
        part, ranks = load_arrays(name, "cpu", self.options)
        _check_device(ranks)
        return part, ranks

    @override
    def features(self, part: GraphPart) -> Rows:
        _check_device(part.ranks)
        if part.x.layout is not torch.strided:
            return part.arrays.features  # sparse: blocks of it become dense
        features: Rows = part.x.float().numpy()
        return features

    @override
    def whole(self, model: Any, part: GraphPart) -> Any:
        _check_device(part.ranks)
        modules = (module for root in network.networks_of(model, torch.nn.Module) for module in root.modules())
        if trained := next((module for module in modules if module.training), None):
            raise SpecError(f"predict: {type(trained).__name__} is in training mode: call model.eval() before")
        with torch.no_grad():
            return network.call(model, self.arguments(model), part.x, network.given_by(part))

    @override
    def array(self, rows: torch.Tensor) -> Rows:
        array: Rows = (rows.float() if rows.dtype in {torch.bfloat16, torch.float16} else rows).numpy()
        return array

    @override
    def step(self, layers: Sequence[Callable[..., Any]]) -> Layer:
        return partial(apply_to_block, layers)

    @override
    def arguments(self, layer: Callable[..., Any]) -> network.Arguments:
        return arguments_of(layer)


def _check_device(ranks: Ranks) -> None:
    if ranks.device.type != "cpu":
        raise SpecError(f"predict: the part is on {ranks.device}: load it with device='cpu'")
