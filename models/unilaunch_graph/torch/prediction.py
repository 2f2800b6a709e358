"""`predict`: what a network says of every node, whole or layer by layer in bounded memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from unilaunch.errors import SpecError
from unilaunch_graph.exchange.gather import save_rows
from unilaunch_graph.inference import infer
from unilaunch_graph.partition.part import Part
from unilaunch_graph.torch.blocks import apply_to_block, group, num_arguments
from unilaunch_graph.torch.loading import load_arrays
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.ranks import Ranks

_MEMORY = 1 << 30


def predict(
    model: Callable[..., Any] | Sequence[Callable[..., Any]],
    graph: GraphPart | str | Path,
    output: Path | str | None = None,
    *,
    memory: int = _MEMORY,
    **options: Any,
) -> torch.Tensor:
    """Return what a network says of this rank's nodes, and write what it says of all. All ranks must call this.

    A network as a whole is called once, as in training; its memory grows with the part. A list of its layers is applied
    layer by layer to blocks of nodes, in float32; what lies between two layers are files in the folder for temporary
    files (TMPDIR): room for two layers' rows and those of the halo. Each member of the list is one step along the
    edges, or takes rows alone (an activation, a normalisation with running statistics). A member is called with as
    many of (x, edge_index, edge_weight, edge_attr) as it has arguments without a default value. Modules must be in
    evaluation mode; they may be distributed.

    Args:
        model: The network (`ug.torch.distribute` has made it exact on parts), or a list of its layers.
        graph: This rank's part; for a list of layers also what `load` takes as a name: then the part stays in mapped
            files, and no tensor of all its edges is made.
        output: The .npz file that rank 0 writes, with the array "scores" (num_nodes, width) in the user's order; no
            rank holds more of it than some rows. None: none is written.
        memory: Bytes that the rows and the messages of a block may take.
        **options: Beside a name: fields of `unilaunch_graph.spec.DataSpec`, as in `load`.

    Returns:
        The rows of the owned nodes; of a list of layers float32, mapped from a file. (num_owned, width)

    Raises:
        SpecError: A layer is not exact on a block, or is in training mode; the message names it. Or the part is not in
            the host's memory.
        InputError: On rank 0: *output* cannot be written.
    """
    layers = list(model) if isinstance(model, Sequence) else None
    if isinstance(graph, GraphPart):
        part, ranks = graph.arrays, graph.ranks
    else:
        part, ranks = load_arrays(graph, "cpu", options)
    if ranks.device.type != "cpu":
        raise SpecError(f"predict: the part is on {ranks.device}: load it with device='cpu'")
    if layers is not None:
        features = graph.x.float().numpy() if isinstance(graph, GraphPart) else part.features
        rows = _by_layers(layers, replace(part, features=features), ranks, memory)
    elif isinstance(graph, GraphPart):
        rows = _as_a_whole(model, graph)
    else:
        raise SpecError("predict: a whole model needs a part of tensors: predict(model, ug.load(name)); or give layers")
    if output is not None:
        save_rows(Path(output), part, {"scores": rows.numpy()}, ranks.collectives)
    return rows


def _by_layers(layers: Sequence[Callable[..., Any]], part: Part, ranks: Ranks, memory: int) -> torch.Tensor:
    steps = [partial(apply_to_block, together) for together in group(layers)]
    with TemporaryDirectory(prefix="unilaunch-") as folder:  # a mapped file is read on until nobody holds it
        return torch.from_numpy(infer(part, ranks.collectives, steps, Path(folder), memory))


def _as_a_whole(model: Any, part: GraphPart) -> torch.Tensor:
    if any(module.training for module in (model.modules() if isinstance(model, torch.nn.Module) else ())):
        raise SpecError(f"predict: {type(model).__name__} is in training mode: call model.eval() before")
    given = (part.x, part.edge_index, part.edge_weight, part.edge_attr)
    with torch.no_grad():
        rows: torch.Tensor = model(*given[: num_arguments(model)])
    return rows.float() if rows.dtype in {torch.bfloat16, torch.float16} else rows
