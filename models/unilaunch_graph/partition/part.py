"""The share of one rank: its nodes, their edges, and whom it exchanges rows with."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.data.graph import TRAIN, Features


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The whole graph, for ranks that divide columns: its nodes in order, so that each rank has a stretch of them.

    Attributes:
        offsets: Where each rank's nodes begin. (num_parts + 1,) int64
        indptr: CSR of the edges, without loops. (num_nodes + 1,) int64
        indices: Neighbours, by their place in the order. int32
        weights: Weights of the edges; of no length if each is 1. float32
    """

    offsets: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Part:
    """The share of one rank.

    Attributes:
        index: Which part this is, 0 to num_parts - 1.
        num_nodes: Nodes of the whole graph.
        num_classes: Classes of the whole graph.
        split_sizes: Training, validation and test nodes of the whole graph.
        owned: Global ids of the nodes that this part owns, neighbours near each other. (num_owned,) int64
        halo: Global ids of their remote neighbours, grouped by owner, in the owner's order. (num_halo,) int64
        halo_counts: Halo nodes of each owner. (num_parts,) int64
        send_rows: Owned nodes (local indices) that are halo elsewhere, grouped by receiver. (num_sent,) int32
        send_counts: Rows to each receiver. (num_parts,) int64
        owned_indptr: CSR of the edges among owned nodes, without self-loops. (num_owned + 1,) int64
        owned_indices: Local indices. int32
        halo_indptr: CSR of the edges from owned to halo nodes. (num_owned + 1,) int64
        halo_indices: Indices into *halo*. int32
        owned_weights: Weights of the edges among owned nodes; of no length if each is 1. float32
        halo_weights: Weights of the edges from owned to halo nodes; the same.
        strengths: Sum of the weights of the owned nodes' edges in the whole graph. (num_owned,) float64
        loops: Weight of their edge to themselves. (num_owned,) float32
        features: Rows of the owned nodes. (num_owned, num_features) float32, dense or CSR
        labels: Classes of the owned nodes, -1 where unknown. (num_owned,) int64
        split: NONE, TRAIN, VAL or TEST of the owned nodes. (num_owned,) uint8
        adjacency: The whole graph, where ranks divide columns; then there is no halo, and no edge here.
        data_sha256: Names the content of the data set, however it is divided; "" where nobody asks for it.
    """

    index: int
    num_nodes: int
    num_classes: int
    split_sizes: tuple[int, int, int]
    owned: NDArray[np.int64]
    halo: NDArray[np.int64]
    halo_counts: NDArray[np.int64]
    send_rows: NDArray[np.int32]
    send_counts: NDArray[np.int64]
    owned_indptr: NDArray[np.int64]
    owned_indices: NDArray[np.int32]
    halo_indptr: NDArray[np.int64]
    halo_indices: NDArray[np.int32]
    owned_weights: NDArray[np.float32]
    halo_weights: NDArray[np.float32]
    strengths: NDArray[np.float64]
    loops: NDArray[np.float32]
    features: Features
    labels: NDArray[np.int64]
    split: NDArray[np.uint8]
    adjacency: Adjacency | None = None
    data_sha256: str = ""

    @property
    def num_parts(self) -> int:
        """Number of parts of the whole graph."""
        return len(self.halo_counts)

    @property
    def num_owned(self) -> int:
        """Number of nodes that this part owns."""
        return len(self.owned)

    @property
    def num_halo(self) -> int:
        """Number of remote neighbours."""
        return len(self.halo)

    @property
    def num_features(self) -> int:
        """Number of columns of the features."""
        return int(self.features.shape[1])

    def loss_share(self) -> NDArray[np.float64]:
        """Return what each owned node's loss counts: 1 / (training nodes of the whole graph), or 0. (num_owned,)"""
        training: NDArray[np.bool_] = self.split == TRAIN
        return training / max(1, self.split_sizes[0])
