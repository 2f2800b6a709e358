"""Layers of a user's on a block of nodes with all their in-edges: what is exact there, and how a layer is called."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import MethodType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from unilaunch.errors import SpecError
from unilaunch_graph.arrays import Rows
from unilaunch_graph.inference import Neighbourhood
from unilaunch_graph.network.prediction import arguments_of, checked, name_of, refuse_optional

#: Set while a layer is applied to a block: a distributed layer then fetches no rows, they are there.
ON_BLOCK: ContextVar[object] = ContextVar("ON_BLOCK", default=None)
#: What a layer may take beside rows.
EDGES = ("edge_index", "edge_weight", "edge_attr")
#: And a model as a whole.
PART = "part"
#: These by name; None: the graph has none.
Arguments = Mapping[str, Any]


def num_arguments(layer: Callable[..., Any]) -> int:
    """Return how many arguments *layer* is called with; 1: it takes rows alone."""
    return 1 + len(_edges_of(layer)[0])


def call(layer: Callable[..., Any], rows: Any, edges: Arguments) -> Any:
    """Return the output of *layer* for rows, and for what its further arguments are named after.

    Raises:
        SpecError: It has an argument of another name, or one with a default value that the graph has an array for.
    """
    needed, optional = _edges_of(layer)
    refuse_optional(layer, (name for name in optional if edges.get(name) is not None), needed)
    return layer(rows, *(edges[name] for name in needed))


def _edges_of(layer: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """Return which of edge_index, edge_weight, edge_attr and part *layer* needs, in its order; which have a default.

    The first argument is rows, whatever its name is, and a second one of an unknown name is edge_index. A function
    whose arguments Python does not know (`torch.relu`) takes rows alone.

    Raises:
        SpecError: It needs no argument, or one of another name.
    """
    function = layer
    if isinstance(layer, torch.nn.Module):
        function = MethodType(type(layer).forward, layer)  # `distribute` gives it a forward that names no argument
    arguments = arguments_of(layer, function)
    if arguments is None:
        return [], []
    needed = [name for name, has_default in arguments.items() if not has_default]
    known = (*EDGES, PART)
    if needed[1:2] and needed[1] not in known:
        needed[1] = "edge_index"
    if not needed or (unknown := [name for name in needed[1:] if name not in known]):
        given = f"the argument {unknown[0]!r}" if needed else "0 arguments"
        raise SpecError(
            f"predict: {name_of(layer)} needs {given}: expected rows, then any of {', '.join(known)}: "
            "give a function that names them"
        )
    return needed[1:], [name for name in known if arguments.get(name)]


def apply_to_block(layers: Sequence[Callable[..., Any]], rows: Rows, block: Neighbourhood) -> Rows:
    """Return the output of a group of layers on a block's targets. (num_nodes, w) -> (num_targets, width) float32

    Raises:
        SpecError: A layer is not exact on a block.
    """
    x, first = torch.from_numpy(rows), layers[0]
    if PART in _edges_of(first)[0]:
        raise SpecError(
            f"predict: {name_of(first)} takes a part, and a block is none: give the whole model in place of a list, or "
            "load its state into PyG's class"
        )
    arrays = {name: getattr(block, name) for name in EDGES}
    edges = {name: None if array is None else torch.from_numpy(array) for name, array in arrays.items()}
    takes_edges = num_arguments(first) > 1
    with torch.no_grad(), _block(block.num_targets):
        own, is_pair = x[: block.num_targets], _takes_pair(first)
        out = checked(first, call(first, ((x, own) if is_pair else x) if takes_edges else own, edges), torch.Tensor)
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
