"""One rank's part of a graph: the fields that it has in both frameworks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.exchange.fetching import Directory
from unilaunch_graph.partition.in_edges import InEdges
from unilaunch_graph.partition.part import Part

Tensor = TypeVar("Tensor")
Indices = TypeVar("Indices")
Ranks = TypeVar("Ranks")


@dataclass(frozen=True, slots=True, eq=False)
class PartFields(Generic[Tensor, Indices, Ranks]):
    """One rank's part of a graph: the nodes that it owns, and every edge into them.

    A row below *num_owned* is an owned node; the rows from *num_owned* on are halo nodes, which other ranks own.
    Integers are int64 in PyTorch and int32 in MindSpore.

    Attributes:
        x: Features of the owned nodes. (num_owned, num_features) float32
        edge_index: Source row and target row of each edge, sorted by target; targets are owned nodes. (2, E)
        edge_weight: Weight of each edge; None: each is 1. (E,) float32
        edge_attr: Features of each edge; None: there are none. (E, k) float32
        y: Labels of the owned nodes. Classes (num_owned,) integers; multi-label (num_owned, C) 0 or 1, uint8 in
            PyTorch and float32 in MindSpore; regression float32
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
        owned: Global ids of the owned nodes, in MindSpore a numpy array. (num_owned,) int64
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
    owned: Indices
    rank: int
    world_size: int
    ranks: Ranks = field(repr=False)
    arrays: Part = field(repr=False)
    directory: Directory = field(repr=False)

    def with_halo(self, rows: Tensor) -> Tensor:
        """Return what `exchange.halo` does, of rows that fit."""
        raise NotImplementedError

    def sum_at_home(self, rows: Tensor) -> Tensor:
        """Return what `exchange.sum_halo` does, of rows that fit."""
        raise NotImplementedError

    def gathered(self, rows: Tensor) -> Tensor | None:
        """Return what `exchange.gather` does, of rows that fit."""
        raise NotImplementedError

    def fetched(self, rows: Tensor, nodes: Any) -> Tensor:
        """Return what `exchange.fetch` does, of rows that fit."""
        raise NotImplementedError

    def masked(self, rows: Tensor, keys: tuple[int, int], probability: float) -> Tensor:
        """Return *rows*, which are floats, times the mask of the owned nodes; the arguments are `fill_mask`'s."""
        raise NotImplementedError

    def __deepcopy__(self, memo: Any) -> Self:
        """Return the part itself: a copy of a network shares it, and the ranks' communication cannot be copied."""
        return self


def fields_of(
    part: Part, ranks: Any, edges: InEdges, tensor: Callable[[NDArray[Any]], Any], *, is_weighted: bool
) -> dict[str, Any]:
    """Return the fields of a part but for *owned* and *arrays*.

    Args:
        part: The arrays.
        ranks: The ranks of the job, of the framework's class.
        edges: The edges into the part's nodes.
        tensor: Returns a copy of an array as the framework's tensor.
        is_weighted: Whether the graph has weights; a part without edges holds none, even if the graph has them.
    """
    features = part.features.toarray() if isinstance(part.features, sp.csr_array) else part.features
    shared = ("num_nodes", "num_owned", "num_halo", "num_classes", "num_features")
    return {
        "x": tensor(features),
        "edge_index": tensor(edges.ends),
        "edge_weight": tensor(_weights(edges)) if is_weighted else None,
        "edge_attr": tensor(edges.edge_attr) if edges.edge_attr.shape[1] else None,
        "y": tensor(part.labels),
        **{f"{name}_mask": tensor(part.split == use) for name, use in (("train", TRAIN), ("val", VAL), ("test", TEST))},
        **dict(zip(("num_train", "num_val", "num_test"), part.split_sizes, strict=True)),
        **{name: getattr(part, name) for name in shared},
        "rank": ranks.rank,
        "world_size": ranks.size,
        "directory": Directory(part, ranks),
        "ranks": ranks,
    }


def _weights(edges: InEdges) -> NDArray[np.float32]:
    return edges.weights if len(edges.weights) else np.ones(edges.ends.shape[1], np.float32)
