"""`predict`: the output of a network for every node, whole or layer by layer in bounded memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from unilaunch_graph.blocks import MEMORY
from unilaunch_graph.data.graph_folder import NO_NAMES, Names
from unilaunch_graph.network import prediction as network
from unilaunch_graph.torch.blocks import TORCH
from unilaunch_graph.torch.part import GraphPart


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

    A network as a whole is called once, as in training; its memory grows with the part. A list of its layers is applied
    layer by layer to the blocks of `ug.torch.blocks`; what lies between two layers are files of float32 in the folder
    for temporary files (TMPDIR): room for two layers' rows and those of the halo. Each member of the list is one step
    along the edges, or takes rows alone (an activation, a normalisation with running statistics). Before it is applied
    it is checked: it must give the same rows on a small graph as on that graph's blocks.

    A network or a member is called with rows, then with what its further arguments are named after: edge_index,
    edge_weight, edge_attr, edge_type, part. If such an argument has a default value, and the graph has the array, it
    is refused, but for this package's layers, which take it from the part. On a block *part* is the block as the part
    of a single rank, and edge_weight is there in any graph, so that GCNConv finds the degrees of the whole graph.
    Modules must be in evaluation mode; they may be distributed.

    Args:
        model: The network (`ug.torch.distribute` has made it exact on parts), or a list of its layers, as a
            `ModuleList` is one. A network as a whole may return a pair: scores and embeddings.
        graph: This rank's part; for a list of layers also what `load` takes as a name: then the part stays in mapped
            files, and no tensor of all its edges is made.
        output: The file that rank 0 writes, in the user's order; None: none is written. No rank holds more of another
            rank's rows than some. Its ending says what it is:
            .npz: "scores" (num_nodes, width); "classes", if there is a score for each class or label of the graph:
            (num_nodes,) int64, the class of the highest score, or (num_nodes, width) uint8, the labels with a score
            above 0; "split" (num_nodes,) uint8: 0 none, 1 training, 2 validation, 3 test; "embeddings" (num_nodes, w),
            if the network as a whole returns a pair.
            .npy: the scores alone.
            .csv, .parquet: a row for each node: node, its name, class, split, the scores and the embeddings.
        memory: Bytes that a block may take, with what the layer makes of it.
        names: The names of nodes and classes, for a table (`ug.read_names`). Those of a graph that is given by its
            folder are read.
        **options: Beside a name: fields of `unilaunch_graph.spec.DataSpec`, as in `load`.

    Returns:
        The scores of the owned nodes as a tensor; of a list of layers float32, mapped from a file. (num_owned, width)
        If the network as a whole returns a pair: the scores and the embeddings. (num_owned, width), (num_owned, w)

    Raises:
        SpecError: A layer is not exact on a block, or is in training mode; the message names it. Or the part is not in
            the host's memory.
        ValueError: A network as a whole returns another number of rows than of owned nodes.
        InputError: On rank 0: *output* cannot be written, or has another ending.
        PluginError: On rank 0: pyarrow, which writes .parquet, is not installed.
    """
    layers = list(model) if isinstance(model, torch.nn.ModuleList) else model
    scores, embeddings = network.predict(TORCH, layers, graph, network.Output(output, names, memory), options)
    tensor = torch.from_numpy(scores)
    return tensor if embeddings is None else (tensor, torch.from_numpy(embeddings))
