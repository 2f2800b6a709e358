"""PyG's modules on a block of nodes: which are exact there, and what a block must not read."""

import inspect
from collections.abc import Callable
from typing import Any, get_args, get_origin

import torch
from torch_geometric.nn import norm as pyg
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.conv import MessagePassing

from unilaunch_graph.torch.dispatch import RUNNING, Block, install
from unilaunch_graph.torch.functions import EXACT_FUNCTIONS
from unilaunch_graph.torch.norms import EXACT
from unilaunch_graph.torch.refusals import REFUSED_FUNCTIONS, find_refusals


def reason_against(module: torch.nn.Module) -> str | None:
    """Return why *module* is not exact on a block, and what to give in its place; None if it is exact."""
    if isinstance(module, Aggregation):
        return None  # of a layer, which has been looked at; one by itself returns another number of rows
    if refusal := next(find_refusals(module), None):
        return refusal
    if isinstance(module, tuple(EXACT)) and not _is_fixed(module):
        return "it normalises by all nodes: give a layer with running statistics"
    return None


def hide_outputs(layer: Any, num_targets: int) -> Callable[[], None]:
    """Let *layer*'s steps along edges give NaN to nodes whose in-edges are not in the block; return what ends it."""

    def hide(_: Any, __: Any, out: torch.Tensor) -> torch.Tensor:
        axis = layer.node_dim % out.dim()
        known = torch.arange(out.shape[axis]) < num_targets
        return out.masked_fill_(~known.view([-1 if at == axis else 1 for at in range(out.dim())]), float("nan"))

    install(EXACT_FUNCTIONS | REFUSED_FUNCTIONS)
    RUNNING.part = Block()
    handle = layer.register_propagate_forward_hook(hide) if isinstance(layer, MessagePassing) else None

    def end() -> None:
        RUNNING.part = None
        if handle:
            handle.remove()

    return end


def takes_pair(layer: Any) -> bool:
    """Return whether a layer of PyG says by its types that x may be a pair: rows of sources, and rows of targets."""
    if not isinstance(layer, MessagePassing):
        return False
    x = inspect.signature(type(layer).forward).parameters.get("x")
    return x is not None and any(get_origin(kind) is tuple for kind in get_args(x.annotation))


def _is_fixed(module: Any) -> bool:
    """Return whether a normalisation asks nobody for the other nodes' rows."""
    if isinstance(module, pyg.LayerNorm):
        return bool(module.mode == "node")
    inner = getattr(module, "module", module)
    return getattr(inner, "running_mean", None) is not None and not getattr(module, "allow_single_element", False)
