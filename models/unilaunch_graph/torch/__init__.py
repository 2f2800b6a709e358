"""A user's own network in PyTorch on a part of the graph: exact on any number of ranks.

Every rank makes the same calls in the same order. `distribute` needs PyTorch Geometric, the other names do not.
Begin with `tensor_halo.py` (the exchange), then read `distributed.py` (where PyG's layers get their halo rows).
"""

from typing import TYPE_CHECKING, Any

from unilaunch_graph.network.dropout import dropout
from unilaunch_graph.network.exchange import fetch, gather, halo, sum_halo
from unilaunch_graph.torch.batch_norm import BatchNorm
from unilaunch_graph.torch.gat import GATConv
from unilaunch_graph.torch.loading import load
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.prediction import predict
from unilaunch_graph.torch.reductions import mean, sum_gradients, sum_ranks
from unilaunch_graph.torch.sage import SAGEConv

if TYPE_CHECKING:
    from unilaunch_graph.torch.distributed import distribute

__all__ = [
    "BatchNorm", "GATConv", "GraphPart", "SAGEConv", "distribute", "dropout", "fetch", "gather", "halo", "load", "mean",
    "predict", "sum_gradients", "sum_halo", "sum_ranks",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "distribute":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from unilaunch_graph.torch.distributed import distribute
    except ModuleNotFoundError as error:
        if error.name != "torch_geometric":
            raise
        from unilaunch.errors import PluginError

        raise PluginError("ug.torch.distribute needs PyTorch Geometric: pip install torch-geometric") from None
    return distribute
