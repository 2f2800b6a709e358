"""What a call of a distributed model is watched for: that it is exact, on this part, and on the ranks' equal weights.

Then what an error, or the script's end, tells about rows and edges of a part.
"""

import atexit
import logging
import sys
from collections.abc import Callable
from functools import wraps
from traceback import walk_tb
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch_geometric.nn.conv import MessagePassing

from unilaunch.errors import SpecError
from unilaunch_graph.torch.exactness import DISTRIBUTED, MAIN, Check, Entry
from unilaunch_graph.torch.part import GraphPart, is_of_another_part, is_of_part
from unilaunch_graph.torch.portable_dropout import with_dropouts
from unilaunch_graph.torch.ranks import Ranks
from unilaunch_graph.torch.running import ON_BLOCK, RUNNING, is_eager, running_on
from unilaunch_graph.torch.state import refuse_different_weights

#: Where layers are; in functions of the user's, edges may be pairs of any rows.
_LAYERS = ("torch_geometric.", "unilaunch_graph.")
#: Counts the forwards of a module that exchange rows, since its state was loaded.
_FORWARDS = "_unilaunch_forwards"
_logger = logging.getLogger("unilaunch_graph")


def watched(
    method: Callable[..., Any], entry: Entry, part: GraphPart, checked: Check | None
) -> Callable[..., Any]:  # fmt: skip
    """Return a method that, where a script calls it, is checked at first, and compares the ranks' weights at times.

    It refuses the edges of another part, and says what an index's error may be.
    """
    inner = with_dropouts(method)

    @wraps(method)
    def call(self: torch.nn.Module, *args: Any, **options: Any) -> Any:
        if entry != MAIN and (not is_eager() or RUNNING.part is not None or ON_BLOCK.get()):
            return method(self, *args, **options)  # the model itself calls it
        _look_at_call(self, entry, (args, options), part, checked)
        before = _count_calls(part)
        try:
            out = inner(self, *args, **options)
        except (IndexError, RuntimeError, ValueError) as error:
            if part.world_size > 1:
                _explain(error, part)
            raise
        if checked and _count_calls(part) > before:  # all ranks have made this call
            _compare_weights(self, part)
        if not torch.is_grad_enabled() and (count := _count_calls(part)):
            _note_evaluation(part.ranks, count)
        return out

    return call


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled model is checked as it was written
def _look_at_call(
    module: torch.nn.Module, entry: Entry, given: tuple[Any, Any], part: GraphPart, checked: Check | None
) -> None:  # fmt: skip
    args, options = given
    if ON_BLOCK.get():
        return
    if any(is_of_another_part(one, part) for one in (*args, *options.values())):
        raise SpecError(
            f"{type(module).__name__} is called with the edge_index of another part than that it is distributed on: "
            "distribute a second model on that part, and load this one's state"
        )
    if checked and is_eager():
        with running_on(None):
            checked.first(module, args, options, entry)


def _count_calls(part: GraphPart) -> int:
    """Return how many collective calls all ranks have made; 0 where that is not to be looked at."""
    if not is_eager() or ON_BLOCK.get() or part.world_size == 1:
        return 0
    number: int = part.ranks.collectives.calls.number
    return number


def _note_evaluation(ranks: Ranks, count: int) -> None:
    """Note that the script has rows to evaluate: at its end rank 0 says so if no call has put the ranks' together."""
    if ranks.rank == 0 and not ranks.evaluated:
        atexit.register(_tell_rows_left, ranks)
    ranks.evaluated = count


def _tell_rows_left(ranks: Ranks) -> None:
    has_failed = getattr(sys, "last_value", None) is not None
    if not has_failed and ranks.evaluated == ranks.collectives.calls.number:
        _logger.warning(
            "the last rows that the model returned are those of each rank's own nodes, part.owned, and no call of "
            "ug.torch has put them together since: ug.torch.gather(out, part) gives rank 0 the rows of all nodes, in "
            "the graph's order; ug.torch.accuracy and ug.torch.mean are of the whole graph"
        )


def _compare_weights(module: torch.nn.Module, part: GraphPart) -> None:
    """Compare the ranks' weights after calls 1, 2, 4, 8, ...: weights that differ stay so."""
    count = vars(module)[_FORWARDS] = vars(module).get(_FORWARDS, 0) + 1
    if count & (count - 1) == 0:
        refuse_different_weights(module, part)


def count_anew(model: torch.nn.Module, _: object) -> None:
    """Count the forwards anew: of a module whose state was loaded."""
    vars(model).pop(_FORWARDS, None)


def _explain(error: Exception, part: GraphPart) -> None:
    """Add to an error of an index what it may be.

    Raises:
        SpecError: A layer on the way to the error has edges into nodes that the part does not own.
    """
    if type(error).__module__.startswith("mpi4py"):
        return
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    of_layers = (frame for frame in frames if str(frame.f_globals.get("__name__")).startswith(_LAYERS))
    edges = [frame.f_locals["edge_index"] for frame in of_layers if "edge_index" in frame.f_locals]
    if edges and _has_other_targets(edges[-1], part):  # a model around the layer may have edge_index.flip(0)
        raise SpecError(
            "edge_index has edges into nodes of other ranks, and a part holds the edges into its nodes: expected "
            "part.edge_index, or edge_index.flip(0) with all edges and no others, as an argument of a layer; give "
            "add_self_loops num_nodes=part.num_owned"
        ) from error
    if not isinstance(error, ValueError):
        error.add_note(
            f"ug.torch.distribute: on rank {part.rank} the sources in edge_index are rows 0 to "
            f"{part.num_owned + part.num_halo - 1}, and nodes {part.num_owned} and up are halo nodes; code that "
            "indexes rows by sources needs them: ug.torch.halo(rows, part)[edge_index[0]]"
        )


def remedy_of(error: BaseException) -> str:
    """Return what to do where a layer that is not distributed has the edges of a part, and rows of owned nodes alone.

    Returns:
        One line; "" if *error* has come from something else.
    """
    for frame, _ in walk_tb(error.__traceback__):
        layer, call = frame.f_locals.get("self"), (frame.f_locals.get("args"), frame.f_locals.get("kwargs"))
        if isinstance(layer, MessagePassing) and not hasattr(layer, DISTRIBUTED) and _lacks_halo(tree_leaves(call)):
            return (
                f"ug.torch.distribute was not called: {type(layer).__name__} has the rows of this rank's nodes, and "
                "part.edge_index begins at nodes of other ranks too: model = ug.torch.distribute(model, part)"
            )
    return ""


def _lacks_halo(given: list[Any]) -> bool:
    """Return whether a layer is given the edges of a part, and too few rows; a GPU's are not read after an error."""
    tensors = [one for one in given if isinstance(one, torch.Tensor) and one.device.type == "cpu"]
    edges = next((one for one in tensors if is_of_part(one) and one.numel()), None)
    rows = next((one for one in tensors if one.dim() and one.is_floating_point()), None)
    return edges is not None and rows is not None and len(rows) <= int(edges[0].max())


def _has_other_targets(edges: Any, part: GraphPart) -> bool:
    """Return whether *edges* end beyond the owned nodes; a GPU's are not read, which it refuses after an error."""
    if not isinstance(edges, torch.Tensor) or edges.dtype != torch.int64 or edges.device.type != "cpu":
        return False
    return edges.dim() == 2 and edges.numel() > 0 and int(edges[-1].max()) >= part.num_owned  # noqa: PLR2004
