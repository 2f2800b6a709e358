"""`load`: from a data set's name to this rank's part."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore as ms

from unilaunch.errors import SpecError
from unilaunch_graph.loading import load_part
from unilaunch_graph.mindspore.part import GraphPart, make_part
from unilaunch_graph.mindspore.ranks import Ranks
from unilaunch_graph.partition.part import Part
from unilaunch_mindspore.backend import MindSporeBackend


def load(name: str | Path, *, dtype: Any = None, **options: Any) -> GraphPart:
    """Return this rank's part of a graph, as tensors. All ranks must call this.

    Works in a script that any launcher has started: `unilaunch launch`, mpirun, torchrun, srun, or none (one rank).
    MindSpore computes on the CPU: it has no exchange of rows for other devices than Ascend. The ranks exchange rows
    over MPI where the launcher has wired MPI up, else over sockets.

    Args:
        name: A data set's name ("cora"), or the path of a graph file or folder.
        dtype: Of x, edge_weight, floating edge_attr, regression and multi-label labels: MindSpore's float16, float32,
            float64 or bfloat16; None: float32.
        **options: Fields of `unilaunch_graph.spec.DataSpec`: `data_dir`, `partition_dir`, `balance`, ...

    Raises:
        SpecError: An option is unknown or has a value that is not allowed, *dtype* is no type of floats, or MindSpore
            is in graph mode.
        PlacementError: MindSpore computes on another device already.
        PluginError: The numpy that is installed does not fit MindSpore.
        UnilaunchError: The ranks do not find each other, or the data set cannot be used.
    """
    return make_part(*load_arrays(name, options), dtype)


def load_arrays(name: str | Path, options: Mapping[str, Any]) -> tuple[Part, Ranks]:
    """Return this rank's part as mapped arrays, and the ranks. All ranks must call this; as `load`."""
    if ms.get_context("mode") == ms.GRAPH_MODE:
        raise SpecError("ug.mindspore works in PyNative mode: call ms.set_context(mode=ms.PYNATIVE_MODE)")
    part, member = load_part(name, "cpu", options)

    def start() -> Ranks:
        MindSporeBackend().start(member.world, member.placement)
        return Ranks(member.world.rank, member.world.size, member.collectives())

    return part, Ranks.once(start)
