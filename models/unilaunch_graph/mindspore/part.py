"""This rank's part of a graph, as MindSpore tensors."""

from functools import cached_property

import numpy as np
from mindspore import Tensor

from unilaunch.backend import Collectives
from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.exchange.user_halo import RankSum, RowHalo
from unilaunch_graph.mindspore.padding import PADDING, padded
from unilaunch_graph.operators.segments import SegmentMean, SegmentSoftmax, SegmentSum
from unilaunch_graph.partition.in_edges import in_edges
from unilaunch_graph.partition.part import Part
from unilaunch_mindspore.linear import Apply, OnHost


class GraphPart:
    """This rank's part of a graph: its owned nodes, and all edges that end at them.

    A part without edges has one node more, the last one: its id in `owned` is -1, its only edge comes from itself, and
    it is in no mask. MindSpore's operators need a row, and an edge.

    Args:
        part: The part as numpy arrays.
        collectives: The ranks' collectives on host arrays.

    Attributes:
        x: Features of the owned nodes. (num_owned, num_features) float32
        edge_index: Source row and target row of each edge; sources are owned rows, then halo rows; in the order of the
            targets. (2, num_edges) int32
        edge_weight: Weight of each edge; None if each is 1. (num_edges,) float32
        edge_attr: Features of each edge; None if the graph has none. (num_edges, k) float32
        y: Labels of the owned nodes. (num_owned,) int32 classes, -1 where unknown; (num_owned, num_classes) float32 of
            0 and 1; or float32 values
        train_mask, val_mask, test_mask: Which owned nodes. (num_owned,) bool
        num_train, num_val, num_test: Nodes of each kind in the whole graph.
        num_nodes: Nodes of the whole graph.
        num_owned, num_halo: Rows of this part.
        num_classes, num_features: Of the whole graph.
        owned: Global ids of the owned nodes. (num_owned,) int64, a numpy array
        rank, world_size: Which part, of how many.
    """

    def __init__(self, part: Part, collectives: Collectives) -> None:
        self.local = padded(part)
        self.edges = in_edges(self.local)
        self.collectives = collectives
        local, edges = self.local, self.edges
        self.x = Tensor(local.features.toarray() if hasattr(local.features, "toarray") else np.array(local.features))
        self.edge_index = Tensor(np.stack((edges.sources, edges.targets)))
        self.edge_weight = Tensor(edges.weights) if len(edges.weights) else None
        self.y = Tensor(local.labels.astype(np.int32 if local.labels.dtype == np.int64 else np.float32))
        self.train_mask, self.val_mask, self.test_mask = (Tensor(local.split == use) for use in (TRAIN, VAL, TEST))
        self.num_train, self.num_val, self.num_test = local.split_sizes
        self.owned, self.num_owned, self.num_halo = local.owned, local.num_owned, local.num_halo
        self.num_nodes, self.num_classes, self.num_features = local.num_nodes, local.num_classes, local.num_features
        self.rank, self.world_size = local.index, local.num_parts

    @cached_property
    def with_halo(self) -> Apply:
        """Owned rows to owned and halo rows, differentiable."""
        return Apply(OnHost(RowHalo(self.local, self.collectives)))

    @cached_property
    def over_ranks(self) -> Apply:
        """Numbers to their sums over all ranks, differentiable."""
        return Apply(OnHost(RankSum(self.collectives)))

    def real_rows(self, rows: Tensor) -> Tensor:
        """Return the rows, with that of the padding node set to 0."""
        return rows * Tensor((self.owned != PADDING)[:, None]) if self.owned[-1] == PADDING else rows

    @cached_property
    def segment_sum(self) -> Apply:
        """Messages to their sums, differentiable."""
        return Apply(OnHost(SegmentSum(self.edges.indptr)))

    @cached_property
    def neighbor_mean(self) -> Apply:
        """Owned and halo rows to the means of the owned nodes' in-neighbours, differentiable."""
        num_rows = self.num_owned + self.num_halo
        return Apply(OnHost(SegmentMean(self.edges.indptr, self.edges.sources, num_rows)))

    @cached_property
    def softmax(self) -> SegmentSoftmax:
        """The softmax of scores over the in-edges of each node."""
        return SegmentSoftmax(self.edges.indptr)
