"""A user's own network in PyTorch on a part of the graph: exact on any number of ranks.

Every rank makes the same calls in the same order. `check`, `distribute` and `dropout_state` need PyTorch Geometric, the
other names do not.
Begin with `ranks.py` (the exchanges), then read `distributed.py` (where PyG's layers get their halo rows).
"""

from typing import TYPE_CHECKING, Any

from unilaunch_graph.comparison import NotCheckedError
from unilaunch_graph.network.functions import accuracy, barrier, dropout, fetch, gather, halo, sum_halo
from unilaunch_graph.torch.batch_norm import BatchNorm
from unilaunch_graph.torch.layers import GATConv, SAGEConv
from unilaunch_graph.torch.loading import load
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.prediction import blocks, predict
from unilaunch_graph.torch.reductions import mean, sum_gradients, sum_ranks

if TYPE_CHECKING:
    from unilaunch_graph.torch.distributed import distribute
    from unilaunch_graph.torch.exactness import check
    from unilaunch_graph.torch.portable_dropout import dropout_state

__all__ = [
    "BatchNorm", "GATConv", "GraphPart", "NotCheckedError", "SAGEConv", "accuracy", "barrier", "blocks", "check",
    "distribute", "dropout", "dropout_state", "fetch", "gather", "halo", "load", "mean", "predict", "sum_gradients",
    "sum_halo", "sum_ranks",
]  # fmt: skip


#: The names that need PyTorch Geometric, and the modules that they are in.
_OF_PYG = {
    "distribute": "distributed", "dropout_state": "portable_dropout",
    "check": "exactness",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _OF_PYG:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_OF_PYG[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch_geometric":
            raise
        from unilaunch.errors import PluginError

        raise PluginError(f"ug.torch.{name} needs PyTorch Geometric: pip install torch-geometric") from None
