"""`blocks`: some of a part's nodes at a time, with all their in-edges, for a layer in bounded memory."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
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
from unilaunch_graph.network import prediction as network
from unilaunch_graph.partition.part import Part
from unilaunch_graph.torch.loading import load_arrays
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.ranks import Ranks

#: Set while a layer is applied to a block: a distributed layer then fetches no rows, they are there.
ON_BLOCK: ContextVar[bool] = ContextVar("ON_BLOCK", default=False)


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
