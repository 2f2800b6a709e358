"""A user's own network in MindSpore on a part of the graph: exact on any number of ranks. PyNative mode.

What `unilaunch_graph.torch` has too has the same name. Every rank makes the same calls in the same order.
Begin with `part.py` (a part and its exchanges), then read `reductions.py` (loss and gradients) and `layers.py`.
"""

from unilaunch_graph.comparison import NotCheckedError
from unilaunch_graph.mindspore.batch_norm import BatchNorm
from unilaunch_graph.mindspore.exactness import check
from unilaunch_graph.mindspore.layers import GATConv, SAGEConv
from unilaunch_graph.mindspore.optimizer import Adam
from unilaunch_graph.mindspore.part import GraphPart, load
from unilaunch_graph.mindspore.prediction import blocks, predict
from unilaunch_graph.mindspore.reductions import mean, sum_gradients, sum_ranks
from unilaunch_graph.mindspore.segments import segment_mean, segment_softmax, segment_sum
from unilaunch_graph.network.functions import accuracy, barrier, dropout, fetch, gather, halo, sum_halo

__all__ = [
    "Adam", "BatchNorm", "GATConv", "GraphPart", "NotCheckedError", "SAGEConv", "accuracy", "barrier", "blocks",
    "check", "dropout", "fetch", "gather", "halo", "load", "mean", "predict", "segment_mean", "segment_softmax",
    "segment_sum", "sum_gradients", "sum_halo", "sum_ranks",
]  # fmt: skip
