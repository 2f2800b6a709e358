"""`blocks`, a loop over some nodes at a time, and `predict` on it: a layer, or a whole network, in bounded memory."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from types import MethodType
from typing import Any, get_args, get_origin

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.arrays import Rows
from unilaunch_graph.blocks import MEMORY, Block
from unilaunch_graph.data.graph import Features
from unilaunch_graph.data.graph_folder import NO_NAMES, Names
from unilaunch_graph.network import prediction as network
from unilaunch_graph.partition.part import Part
from unilaunch_graph.torch.loading import load_arrays
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.ranks import Ranks
from unilaunch_graph.torch.running import ON_BLOCK


def blocks(
    x: torch.Tensor | None, graph: GraphPart | str | Path, *, memory: int = MEMORY, width: int = 0, **options: Any
) -> Iterator[Block[torch.Tensor]]:  # fmt: skip
    """Return an iterator over this rank's nodes in blocks, each with all its in-edges. All ranks must call this.

    A layer that reads each node's in-neighbours, and is not distributed, is exact on a block, for the targets:

        out = torch.empty(part.num_owned, 64)
        with torch.no_grad():
            for block in ug.torch.blocks(part.x, part):
                out[block.targets] = layer(block.x, block.edge_index)[: block.num_targets]

    A layer that normalises by degrees, as GCNConv does, takes `block = block.with_degrees()`, and `block.edge_weight`
    beside `block.edge_index`, in any graph. The call sends the rows of the halo; the loop sends nothing, so ranks may
    have different numbers of blocks.

    Args:
        x: A row for each owned node; None: the features of the graph. (num_owned, columns)
        graph: This rank's part in the host's memory, or what `load` takes as a name: then the part stays in mapped
            files.
        memory: Bytes that a block may take, with what the layer makes of it. A node with more in-edges than that is a
            block by itself.
        width: Numbers of 4 bytes that the layer makes for each edge and row; 0: twice the columns of *x*.
        **options: Beside a name: fields of `unilaunch_graph.spec.DataSpec`, as in `load`.

    Raises:
        SpecError: The part is not in the host's memory, or *x* is None and the graph has no features.
        ValueError: *x* is no matrix with num_owned rows.
    """
    return network.blocks(TORCH, x, graph, (memory, width), options)


class Torch(network.Framework):
    """PyTorch, as `predict` uses it."""

    tensor = torch.Tensor

    @override
    def load(self, name: str | Path, options: Mapping[str, Any]) -> tuple[Part, Ranks]:
        return load_arrays(name, "cpu", options)

    @override
    def check_device(self, ranks: Ranks) -> None:
        if ranks.device.type != "cpu":
            raise SpecError(f"predict: the part is on {ranks.device}: load it with device='cpu'")

    @override
    def features(self, part: GraphPart) -> Features:
        if part.x.layout is not torch.strided:
            return part.arrays.features  # sparse: blocks of it become dense
        return self.array(part.x.float())

    @override
    def alone(self, part: Part) -> GraphPart:
        return make_part(part, Ranks(0, 1, Alone(), torch.device("cpu")))

    @override
    def array(self, rows: torch.Tensor) -> Rows:
        array: Rows = (rows.float() if rows.dtype in {torch.bfloat16, torch.float16} else rows).detach().numpy()
        return array

    @override
    def function(self, layer: Callable[..., Any]) -> Callable[..., Any]:
        layer = getattr(layer, "_orig_mod", layer)  # of torch.compile
        if isinstance(layer, torch.nn.Module):
            return MethodType(type(layer).forward, layer)  # `distribute` gives it a forward that names no argument
        return layer

    @override
    def takes_pair(self, layer: Callable[..., Any]) -> bool:
        """Return whether a layer of PyG says by its types that x may be a pair."""
        if "torch_geometric" not in sys.modules:
            return False
        from torch_geometric.nn.conv import MessagePassing

        x = inspect.signature(type(layer).forward).parameters.get("x") if isinstance(layer, MessagePassing) else None
        return x is not None and any(get_origin(kind) is tuple for kind in get_args(x.annotation))

    @override
    @contextmanager
    def running(self, layer: Callable[..., Any], *, on_block: bool) -> Iterator[None]:
        thread = get_ident()

        def refuse(module: torch.nn.Module, _: Any) -> None:
            if get_ident() != thread:
                return  # a hook is the whole process's
            if module.training:
                raise SpecError(f"predict: {type(module).__name__} is in training mode: call model.eval() before")
            if on_block and getattr(module, "cached", False):
                raise SpecError(
                    f"predict: {type(module).__name__} keeps what it makes of the edges, and a block has others than "
                    "the next: set cached=False on it"
                )

        hook, token = register_module_forward_pre_hook(refuse), ON_BLOCK.set(on_block)
        try:
            with torch.no_grad():
                yield
        finally:
            ON_BLOCK.reset(token)
            hook.remove()

    @override
    @contextmanager
    def counting(self) -> Iterator[list[int]]:
        with _Counting() as counting:
            yield counting.made


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of each tensor that is made in other memory than that of the inputs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[int] = []

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if _is_dense(leaf)}
        made = [leaf.untyped_storage() for leaf in tree_leaves(out) if _is_dense(leaf)]
        self.made += [storage.nbytes() for storage in made if storage.data_ptr() not in given]
        return out


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided


TORCH = Torch()


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
