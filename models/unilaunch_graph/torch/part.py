"""One rank's part of a graph, as a network on tensors takes it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.partition.in_edges import merge_in_edges
from unilaunch_graph.partition.part import Part
from unilaunch_graph.torch.ranks import Ranks


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Which rows this rank sends in a halo exchange, and how many it receives.

    Attributes:
        rows: For each receiver, the owned rows that are halo rows there; within one receiver no row twice. int64
        every: All of them, one receiver after the other. (num_sent,) int64
        send_counts: Rows to each rank. (world_size,)
        receive_counts: Halo rows of each owner. (world_size,)
    """

    rows: tuple[torch.Tensor, ...]
    every: torch.Tensor
    send_counts: list[int]
    receive_counts: list[int]


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows that do not change from step to step, with their halo.

    Attributes:
        rows: The owned rows, and how often they had been written then: torch counts that.
        whole: The same with the halo's rows, and how often they had been written.
    """

    rows: tuple[torch.Tensor, int]
    whole: tuple[torch.Tensor, int]

    def is_of(self, rows: torch.Tensor) -> bool:
        """Return whether these are *rows*, and nobody has written to either."""
        return self.rows[0] is rows and all(tensor._version == count for tensor, count in (self.rows, self.whole))  # noqa: SLF001  (torch has no other name for it)


@dataclass(frozen=True, slots=True, eq=False)
class GraphPart:
    """One rank's part of a graph: the nodes that it owns, and every edge into them.

    A row below *num_owned* is an owned node; the rows from *num_owned* on are halo nodes, which other ranks own.

    Attributes:
        x: Features of the owned nodes. (num_owned, num_features) float32
        edge_index: Source row and target row of each edge, sorted by target; targets are owned nodes. (2, E) int64
        edge_weight: Weight of each edge; None: each is 1. (E,) float32
        edge_attr: Features of each edge; None: there are none. (E, k) float32
        y: Labels of the owned nodes. (num_owned,) int64; multi-label (num_owned, C) uint8; regression float32
        train_mask: The owned nodes to train on. (num_owned,) bool
        val_mask: Those to validate on. (num_owned,) bool
        test_mask: Those to test on. (num_owned,) bool
        num_train: Training nodes of the whole graph.
        num_val: Validation nodes of the whole graph.
        num_test: Test nodes of the whole graph.
        num_nodes: Nodes of the whole graph.
        num_owned: Nodes that this rank owns.
        num_halo: Sources of edges into them that other ranks own.
        num_classes: Classes of the whole graph.
        num_features: Columns of *x*.
        owned: Global ids of the owned nodes. (num_owned,) int64
        rank: Index of this rank.
        world_size: Number of ranks.
    """

    x: torch.Tensor
    edge_index: torch.Tensor
    edge_weight: torch.Tensor | None
    edge_attr: torch.Tensor | None
    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor
    test_mask: torch.Tensor
    num_train: int
    num_val: int
    num_test: int
    num_nodes: int
    num_owned: int
    num_halo: int
    num_classes: int
    num_features: int
    owned: torch.Tensor
    rank: int
    world_size: int
    arrays: Part = field(repr=False)
    ranks: Ranks = field(repr=False)
    plan: SendPlan = field(repr=False)
    #: What `halo` keeps of *x*, which seldom changes: see there.
    kept: dict[str, "Kept"] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.ranks.device


def make_part(part: Part, ranks: Ranks) -> GraphPart:
    """Return the part's arrays as tensors on the device of *ranks*. All ranks must call this.

    Args:
        part: The arrays.
        ranks: The other ranks.
    """

    def tensor(array: NDArray[Any]) -> torch.Tensor:
        return torch.tensor(np.ascontiguousarray(array), device=ranks.device)  # a copy of the mapped file

    features = part.features.toarray() if isinstance(part.features, sp.csr_array) else part.features
    edges = merge_in_edges(part)
    # A part without edges holds no weights, whether the graph has them or not.
    is_weighted = ranks.all_reduce(tensor(np.array([len(edges.weights)]))).item() > 0
    train, val, test = (tensor(part.split == use) for use in (TRAIN, VAL, TEST))
    every = tensor(part.send_rows.astype(np.int64))
    counts = part.send_counts.tolist()
    return GraphPart(
        tensor(features),
        tensor(edges.ends),
        tensor(edges.weights) if is_weighted else None,
        tensor(edges.edge_attr) if edges.edge_attr.shape[1] else None,
        tensor(part.labels),
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
        owned=tensor(part.owned),
        rank=ranks.rank,
        world_size=ranks.size,
        arrays=part,
        ranks=ranks,
        plan=SendPlan(torch.split(every, counts), every, counts, part.halo_counts.tolist()),
    )
