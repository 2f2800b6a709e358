"""Layers of a user's on a block of nodes with all their in-edges: what is exact there, and how a layer is called."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import MethodType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from unilaunch.errors import SpecError
from unilaunch_graph.arrays import Rows
from unilaunch_graph.inference import Neighbourhood
from unilaunch_graph.network.prediction import ARGUMENTS, Arguments, call, checked, find_arguments, name_of

#: Set while a layer is applied to a block: a distributed layer then fetches no rows, they are there.
ON_BLOCK: ContextVar[object] = ContextVar("ON_BLOCK", default=None)


def arguments_of(layer: Callable[..., Any]) -> Arguments:
    """Return what *layer* takes beside rows; a second argument of an unknown name is edge_index."""
    function = layer
    if isinstance(layer, torch.nn.Module):
        function = MethodType(type(layer).forward, layer)  # `distribute` gives it a forward that names no argument
    return find_arguments(layer, function, "edge_index")


def apply_to_block(layers: Sequence[Callable[..., Any]], rows: Rows, block: Neighbourhood) -> Rows:
    """Return the output of a group of layers on a block's targets. (num_nodes, w) -> (num_targets, width) float32

    Raises:
        SpecError: A layer is not exact on a block.
    """
    x, first = torch.from_numpy(rows), layers[0]
    arguments = arguments_of(first)
    if "part" in arguments.needed:
        raise SpecError(
            f"predict: {name_of(first)} takes a part, and a block is none: give the whole model in place of a list, or "
            "load its state into PyG's class"
        )
    arrays = {name: getattr(block, name, None) for name in ARGUMENTS}
    edges = {name: None if array is None else torch.from_numpy(array) for name, array in arrays.items()}
    takes_edges = bool(arguments.needed)
    with torch.no_grad(), _block(block.num_targets):
        own, is_pair = x[: block.num_targets], _takes_pair(first)
        rows_of = ((x, own) if is_pair else x) if takes_edges else own
        out = checked(first, call(first, arguments, rows_of, edges), torch.Tensor)
        if takes_edges and len(out) != len(own if is_pair else x):
            raise SpecError(
                f"predict: {name_of(first)} returned {len(out)} rows of {len(x)} nodes: expected one for each"
            )
        out = out[: block.num_targets]
        for layer in layers[1:]:
            out = checked(layer, layer(out), torch.Tensor)
    if bool(out.isnan().any()) and not bool(x.isnan().any()):
        raise SpecError(
            f"predict: the output of {name_of(first)} is not a number: its weights are none, or it reads neighbours of "
            "neighbours: give each step along the edges as a layer, or the whole model in place of a list"
        )
    result: Rows = out.float().numpy()
    return result


@contextmanager
def _block(num_targets: int) -> Iterator[None]:
    """Refuse modules that are not exact on a block; what a block does not know becomes NaN."""
    with ExitStack() as hooks:

        def look(module: torch.nn.Module, _: Any) -> None:
            if ON_BLOCK.get() is not hooks:
                return  # a hook is the whole process's: this module is of another thread
            if module.training:
                raise SpecError(f"predict: {type(module).__name__} is in training mode: call model.eval() before")
            if "torch_geometric" in sys.modules:
                from unilaunch_graph.torch.block_rules import hide_outputs, reason_against

                if reason := reason_against(module):
                    raise SpecError(
                        f"predict: {type(module).__name__}: {reason}, or the whole model in place of a list"
                    )
                hooks.callback(hide_outputs(module, num_targets))

        hooks.callback(register_module_forward_pre_hook(look).remove)
        hooks.callback(ON_BLOCK.reset, ON_BLOCK.set(hooks))
        yield


def _takes_pair(layer: Callable[..., Any]) -> bool:
    """Return whether a layer of PyG takes rows of sources and rows of targets, and then computes the targets alone."""
    if "torch_geometric" not in sys.modules:
        return False
    from unilaunch_graph.torch.block_rules import takes_pair

    return takes_pair(layer)
