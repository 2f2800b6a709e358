"""One rank's part of a graph, as a network in MindSpore takes it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from mindspore import Tensor
from numpy.typing import NDArray

from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.exchange.user_halo import RowHalo
from unilaunch_graph.mindspore.padding import padded
from unilaunch_graph.mindspore.ranks import Collective, Ranks, RankSum
from unilaunch_graph.operators.segments import SegmentSoftmax, SegmentSum
from unilaunch_graph.partition.in_edges import InEdges, merge_in_edges
from unilaunch_graph.partition.part import Part
from unilaunch_mindspore.linear import Apply, OnHost


@dataclass(frozen=True, slots=True, eq=False)
class GraphPart:
    """One rank's part of a graph: the nodes that it owns, and every edge into them.

    A row below *num_owned* is an owned node; the rows from *num_owned* on are halo nodes, which other ranks own.
    MindSpore's operators fail or return garbage without a row: a part without edges has one row more, the last one. Its
    id is -1, its only edge comes from itself, and no mask holds it.

    Attributes:
        x: Features of the owned nodes. (num_owned, num_features) float32
        edge_index: Source row and target row of each edge, sorted by target; targets are owned nodes. (2, E) int32
        edge_weight: Weight of each edge; None: each is 1. (E,) float32
        edge_attr: Features of each edge; None: there are none. (E, k) float32
        y: Labels of the owned nodes. (num_owned,) int32; multi-label (num_owned, C) float32 of 0 and 1; regression
            float32
        train_mask: The owned nodes to train on. (num_owned,) bool
        val_mask: Those to validate on. (num_owned,) bool
        test_mask: Those to test on. (num_owned,) bool
        num_train: Training nodes of the whole graph.
        num_val: Validation nodes of the whole graph.
        num_test: Test nodes of the whole graph.
        num_nodes: Nodes of the whole graph.
        num_owned: Rows of the owned nodes.
        num_halo: Sources of edges into them that other ranks own.
        num_classes: Classes of the whole graph.
        num_features: Columns of *x*.
        owned: Global ids of the owned nodes. (num_owned,) int64
        rank: Index of this rank.
        world_size: Number of ranks.
    """

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None
    edge_attr: Tensor | None
    y: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_train: int
    num_val: int
    num_test: int
    num_nodes: int
    num_owned: int
    num_halo: int
    num_classes: int
    num_features: int
    owned: NDArray[np.int64]
    rank: int
    world_size: int
    ranks: Ranks = field(repr=False)
    arrays: Part = field(repr=False)
    operators: "Operators" = field(repr=False)


@dataclass(frozen=True, slots=True)
class Operators:
    """What the functions on a part apply.

    Attributes:
        edges: The part's edges on the host.
        halo: Owned rows to owned and halo rows.
        halo_sum: Its transpose.
        rank_sum: Numbers to their sums over all ranks.
        segment_sum: Messages to their sums.
        segment_softmax: Scores to their shares.
        made: What layers have made of the edges.
    """

    edges: InEdges
    halo: Collective
    halo_sum: Collective
    rank_sum: Collective
    segment_sum: Apply
    segment_softmax: SegmentSoftmax
    made: dict[Any, Any]


def make_part(part: Part, ranks: Ranks) -> GraphPart:
    """Return the part's arrays as tensors. All ranks must call this.

    Args:
        part: The arrays.
        ranks: The other ranks.
    """
    arrays, part = part, padded(part)
    edges = merge_in_edges(part)
    features = part.features.toarray() if isinstance(part.features, sp.csr_array) else part.features
    num_weights = np.array([len(edges.weights)])
    ranks.collectives.all_reduce(num_weights)  # a part without edges holds no weights, even if the graph has them
    weights = edges.weights if len(edges.weights) else np.ones(edges.ends.shape[1], np.float32)
    train, val, test = (Tensor(part.split == use) for use in (TRAIN, VAL, TEST))
    return GraphPart(
        Tensor(np.array(features)),  # a copy: the file is mapped, and read-only
        Tensor(edges.ends.astype(np.int32)),
        Tensor(weights) if num_weights[0] else None,
        Tensor(edges.edge_attr) if edges.edge_attr.shape[1] else None,
        Tensor(part.labels.astype(np.int32 if part.labels.dtype == np.int64 else np.float32)),
        train,
        val,
        test,
        num_train=part.split_sizes[0],
        num_val=part.split_sizes[1],
        num_test=part.split_sizes[2],
        num_nodes=part.num_nodes,
        num_owned=part.num_owned,
        num_halo=part.num_halo,
        num_classes=part.num_classes,
        num_features=part.num_features,
        owned=part.owned,
        rank=ranks.rank,
        world_size=ranks.size,
        ranks=ranks,
        arrays=arrays,
        operators=_operators(part, edges, ranks),
    )


def _operators(part: Part, edges: InEdges, ranks: Ranks) -> Operators:
    halo = RowHalo(part, ranks.collectives)
    return Operators(
        edges,
        Collective(halo),
        Collective(Transposed(halo)),
        Collective(RankSum(ranks.collectives)),
        Apply(OnHost(SegmentSum(edges.indptr))),
        SegmentSoftmax(edges.indptr),
        {},
    )


class Transposed:
    """An operator's transpose, as an operator."""

    def __init__(self, operator: Any) -> None:
        self.matmat, self.rmatmat = operator.rmatmat, operator.matmat
