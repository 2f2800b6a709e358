"""Networks of your own in MindSpore, exact on any number of parts: the same names as in `unilaunch_graph.torch`."""

from unilaunch_graph.mindspore.batch_norm import BatchNorm
from unilaunch_graph.mindspore.exchange import gather, halo, mean, sum_gradients
from unilaunch_graph.mindspore.optimizer import Adam
from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.mindspore.sage import SAGEConv
from unilaunch_graph.mindspore.segments import segment_mean, segment_softmax, segment_sum

__all__ = [
    "Adam", "BatchNorm", "GraphPart", "SAGEConv", "gather", "halo", "mean", "segment_mean", "segment_softmax",
    "segment_sum", "sum_gradients",
]  # fmt: skip
