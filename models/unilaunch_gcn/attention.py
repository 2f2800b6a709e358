"""The computations of a graph attention network (Velickovic et al., ICLR 2018) beside its products, on host arrays."""

import numpy as np

from unilaunch.interfaces.backend import Collectives
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_graph.dropout import stream_keys
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.user_halo import RowHalo
from unilaunch_graph.operators.attention import Attention, AttentionCall
from unilaunch_graph.operators.edge_dropout import EdgeDropout
from unilaunch_graph.operators.edges import choose_edges
from unilaunch_graph.operators.row_blocks import make_pool
from unilaunch_graph.partition.part import Part, merge_in_edges

#: Slope of the leaky ReLU below 0, as in the paper.
_SLOPE = 0.2


class GraphAttention:
    """The way from the owned rows to the sums over the in-edges of one part, each node's own loop included.

    It is a linear operator too: owned rows to owned and halo rows, as `RowHalo`.

    Args:
        part: This rank's part.
        collectives: The way to the other parts.
        threads: Threads that share the sums.
        config: What is trained.
        meter: Counts the bytes that arrive, and the time spent waiting.
    """

    def __init__(self, part: Part, collectives: Collectives, threads: int, config: NetworkConfig, meter: Meter) -> None:
        self.config, self.num_owned = config, part.num_owned
        self.nodes = np.concatenate((part.owned, part.halo))
        halo = RowHalo(part, collectives, meter)
        self.matmat, self.rmatmat = halo.matmat, halo.rmatmat
        edges = choose_edges(merge_in_edges(part).ends, part.num_owned, len(self.nodes), self_loops=True).edges
        self.attention = Attention(edges, _SLOPE, make_pool(threads))
        self.epoch: int | None = None

    def start_epoch(self, epoch: int | None) -> None:
        """Note that an epoch begins, or an evaluation (None), in which nothing is dropped."""
        self.epoch = epoch

    def of_layer(self, depth: int) -> AttentionCall:
        """Return the attention of one layer in this epoch."""
        config, dropout = self.config, None
        if self.epoch is not None and config.dropout:
            low, high = stream_keys(config.seed, self.epoch, depth)
            dropout = EdgeDropout(self.nodes, self.num_owned, high << 32 | low, config.dropout, config.dtype)
        return AttentionCall(self.attention, dropout)
