"""The share of one rank: its nodes, their edges, and the rows that it exchanges with other ranks."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Rows
from unilaunch_graph.data.edges import EDGE_IDS, NamedArrays
from unilaunch_graph.data.graph import NONE, TRAIN, Features
from unilaunch_graph.data.labels import Labels, Task, task_of


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The whole graph, for ranks that divide the columns of features; each rank has a range of the ordered nodes.

    Attributes:
        offsets: Index of the first node of each rank. (num_parts + 1,) int64
        indptr: CSR of the in-edges. (num_nodes + 1,) int64
        indices: Their sources, by their position in the order. int32
        weights: Weights of the edges; empty if each is 1. float32
    """

    offsets: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Part:
    """The share of one rank: its nodes and all their in-edges.

    Attributes:
        index: Index of this part, 0 to num_parts - 1.
        num_nodes: Nodes of the whole graph.
        num_classes: Classes of the whole graph, or columns of its labels.
        split_sizes: Training, validation and test nodes of the whole graph.
        is_directed: As in `Graph`: True: edges are as given, with loops and duplicates.
        owned: Global ids of the nodes that this part owns, neighbours near each other. (num_owned,) int64
        halo: Global ids of the remote sources of their in-edges, grouped by owner, in the owner's order.
            (num_halo,) int64
        halo_counts: Halo nodes of each owner. (num_parts,) int64
        send_rows: Owned nodes (local indices) that are halo nodes of other parts, grouped by receiver.
            (num_sent,) int32
        send_counts: Rows to each receiver. (num_parts,) int64
        owned_indptr: CSR of the in-edges of owned nodes from owned nodes. (num_owned + 1,) int64
        owned_indices: Local indices of their sources, ascending within each node. int32
        halo_indptr: CSR of the in-edges of owned nodes from halo nodes. (num_owned + 1,) int64
        halo_indices: Their sources: indices into *halo*, ascending within each node. int32
        owned_weights: Weights of the edges from owned nodes; empty if each is 1. float32
        halo_weights: Weights of the edges from halo nodes; the same.
        owned_edge_arrays: Further arrays of the edges from owned nodes by name, as in `Graph`. (edges, ...)
        halo_edge_arrays: Those of the edges from halo nodes; the same names.
        strengths: Sum of the weights of the owned nodes' in-edges in the whole graph. (num_owned,) float64
        loops: Weight of their edge to themselves in A_hat. (num_owned,) float32
        features: Rows of the owned nodes, as in `Graph`. (num_owned, num_features)
        labels: Labels of the owned nodes, as in `Graph.labels`. (num_owned,) or (num_owned, num_classes)
        split: NONE, TRAIN, VAL or TEST of the owned nodes. (num_owned,) uint8
        node_arrays: Further arrays of the owned nodes by name, as in `Graph`. (num_owned, ...)
        adjacency: The whole graph, if ranks divide columns; then the part has no halo and no edges.
        data_sha256: SHA-256 of the data set's content, the same for any partition; "" if it is not needed.
        inputs_sha256: SHA-256 of the edges and the features, on which a prediction depends; the same for any partition,
            and for other labels and splits; "" if the part is not from disk.
    """

    index: int
    num_nodes: int
    num_classes: int
    split_sizes: tuple[int, int, int]
    is_directed: bool
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
    owned_edge_arrays: NamedArrays
    halo_edge_arrays: NamedArrays
    strengths: NDArray[np.float64]
    loops: NDArray[np.float32]
    features: Features
    labels: Labels
    split: NDArray[np.uint8]
    node_arrays: NamedArrays = field(default_factory=dict)
    adjacency: Adjacency | None = None
    data_sha256: str = ""
    inputs_sha256: str = ""

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
        """Number of halo nodes: remote sources of in-edges."""
        return len(self.halo)

    @property
    def num_edges(self) -> int:
        """Number of edges that this part's rank multiplies by."""
        if self.adjacency:
            return len(self.adjacency.indices)
        return len(self.owned_indices) + len(self.halo_indices)

    @property
    def num_features(self) -> int:
        """Number of columns of the features."""
        return int(self.features.shape[1])

    @property
    def least_weight(self) -> float:
        """The smallest of its edges' weights and 0; where ranks divide columns, of those of the whole graph."""
        weights = [self.owned_weights, self.halo_weights, *([self.adjacency.weights] if self.adjacency else [])]
        return min(float(one.min(initial=0)) for one in weights)

    @property
    def task(self) -> Task:
        """The task that the labels belong to."""
        return task_of(self.labels)

    def loss_share(self) -> NDArray[np.float64]:
        """Return the weight of each owned node's loss: 1 / (training nodes of the whole graph), or 0. (num_owned,)"""
        training: NDArray[np.bool_] = self.split == TRAIN
        return training / max(1, self.split_sizes[0])


def lonely_part(
    rows: Rows, indptr: NDArray[np.int64], sources: NDArray[np.int32], weights: NDArray[np.float32],
    edge_arrays: NamedArrays,
) -> Part:  # fmt: skip
    """Return the only part of a graph that is not divided and has no labels.

    Args:
        rows: Features of the nodes. (nodes, width)
        indptr: Index of the first in-edge of each node. (nodes + 1,)
        sources: Sources of the edges. (edges,)
        weights: Weights of the edges; empty if each is 1.
        edge_arrays: Further arrays of the edges by name. (edges, ...)
    """
    size, none = len(rows), np.zeros(0, np.int64)
    return Part(
        index=0, num_nodes=size, num_classes=1, split_sizes=(0, 0, 0), is_directed=True, owned=np.arange(size),
        halo=none, halo_counts=np.zeros(1, np.int64), send_rows=none.astype(np.int32),
        send_counts=np.zeros(1, np.int64),
        owned_indptr=indptr, owned_indices=sources, halo_indptr=np.zeros_like(indptr),
        halo_indices=none.astype(np.int32), owned_weights=weights, halo_weights=none.astype(np.float32),
        owned_edge_arrays=edge_arrays, halo_edge_arrays={name: array[:0] for name, array in edge_arrays.items()},
        strengths=np.ones(size), loops=np.ones(size, np.float32), features=rows, labels=np.zeros(size, np.int64),
        split=np.full(size, NONE, np.uint8),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class InEdges:
    """All in-edges of a part's nodes, by target, then by the source's global id, then by the place in the user's list.

    So the order is the same for any partition; edges without such places have no parallel ones.

    Attributes:
        ends: Source row and target row of each edge; source rows number the owned nodes, then the halo nodes.
            (2, edges) int64
        indptr: Index of the first in-edge of each owned node. (num_owned + 1,) int64
        weights: Weight of each edge; empty if each is 1. float32
        arrays: Further arrays of the edges by name, without `EDGE_IDS`. (edges, ...)
    """

    ends: NDArray[np.int64]
    indptr: NDArray[np.int64]
    weights: NDArray[np.float32]
    arrays: NamedArrays


def merge_in_edges(part: Part) -> InEdges:
    """Return the in-edges of the nodes of *part*."""
    ends, order = _ends(part)
    weights = np.concatenate([part.owned_weights, part.halo_weights])
    return InEdges(
        ends[:, order],
        part.owned_indptr + part.halo_indptr,
        weights[order] if len(weights) else weights,
        {
            name: np.concatenate([array, part.halo_edge_arrays[name]])[order]
            for name, array in part.owned_edge_arrays.items()
            if name != EDGE_IDS
        },
    )


def edge_ids(part: Part) -> NDArray[np.int64] | None:
    """Return the position of each of `merge_in_edges` in the user's list of edges; None: they are not the user's."""
    return ends_and_ids(part)[1] if EDGE_IDS in part.owned_edge_arrays else None


def ends_and_ids(part: Part) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the *ends* of `merge_in_edges`, and `edge_ids`."""
    ends, order = _ends(part)
    return ends[:, order], _ids(part)[order].astype(np.int64) if EDGE_IDS in part.owned_edge_arrays else None


def _ids(part: Part) -> NDArray[Any]:
    return np.concatenate([part.owned_edge_arrays[EDGE_IDS], part.halo_edge_arrays[EDGE_IDS]])


def _ends(part: Part) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ends of the edges from owned nodes, then from halo nodes, and the order of `InEdges`."""
    nodes = np.arange(part.num_owned, dtype=np.int64)
    targets = [np.repeat(nodes, np.diff(indptr)) for indptr in (part.owned_indptr, part.halo_indptr)]
    sources = [part.owned_indices.astype(np.int64), part.halo_indices.astype(np.int64) + part.num_owned]
    ends = np.stack([np.concatenate(sources), np.concatenate(targets)])
    keys: list[NDArray[Any]] = [np.concatenate([part.owned, part.halo])[ends[0]], ends[1]]
    if EDGE_IDS in part.owned_edge_arrays:  # SciPy, which sorted the part's edges, does not keep parallel ones in order
        keys.insert(0, _ids(part))
    return ends, np.lexsort(keys)
