"""Cut a graph into parts: METIS decides who owns a node, and each part learns whom it exchanges rows with."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_gcn.graph import TEST, TRAIN, VAL, Features, Graph, csr_matrix, edge_matrix, symmetric
from unilaunch_gcn.partition_statistics import count

#: METIS_OBJTYPE_VOL: total communication volume, for k-way partitioning only.
_VOLUME = 1
#: Directed edges from which on METIS sees some edges of each node. On 78 million edges it took a tenth of the time, and
#: cut as few of the whole graph's edges (12.9 % of them, to 0.1 points). It is asked for the volume only if edges times
#: parts are fewer: that takes a time that grows with both (2 million edges: 10 s for 8 parts, 118 s for 32).
LARGE = 20_000_000
_SEEN = 16
#: Nodes of one block in the order within a part: its rows, 128 wide, stay in a core's cache.
BLOCK_NODES = 400


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


def assign(graph: Graph, num_parts: int, balance: str) -> NDArray[np.int64]:
    """Return the part that owns each node.

    METIS is asked twice, for the least total communication volume (k-way, several cuts) and for the least cut
    (recursive bisection, its default), and the assignment with the smaller halo is kept: the first is better on most
    graphs, by up to 29 %, and worse on some. Of a large graph, or for many parts, only the second is asked, of a large
    one for some of its edges. The seed is fixed: the same graph gives the same parts.

    Args:
        graph: The graph.
        num_parts: Number of parts; more than there are nodes leaves parts empty.
        balance: What the parts have alike: "nodes", "edges" or "train" (training nodes).

    Returns:
        (num_nodes,) int64.
    """
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int64)
    if num_parts >= graph.num_nodes:
        return np.arange(graph.num_nodes, dtype=np.int64)
    weights = _weights(graph, balance)
    seen = _thinned(graph) if len(graph.indices) > LARGE else graph
    cut = _metis(seen.indptr, seen.indices, num_parts, weights, by_volume=False)
    if len(graph.indices) * num_parts > LARGE:
        return cut
    volume = _metis(graph.indptr, graph.indices, num_parts, weights, by_volume=True)
    return min((volume, cut), key=lambda owner: halo_size(graph, owner, num_parts))


def _weights(graph: Graph, balance: str) -> NDArray[np.int64] | None:
    if balance == "edges":
        return graph.degrees + 1
    if balance == "train":
        # A little for every node: METIS would else put all others into one part.
        return np.where(graph.split == TRAIN, max(1, graph.num_nodes // max(1, int((graph.split == TRAIN).sum()))), 1)
    return None


def _metis(
    indptr: NDArray[Any],
    indices: NDArray[np.int32],
    num_parts: int,
    weights: NDArray[np.int64] | None,
    *,
    by_volume: bool,
) -> NDArray[np.int64]:
    import pymetis

    options = pymetis.Options(seed=1, objtype=_VOLUME, ncuts=5) if by_volume else pymetis.Options(seed=1)
    adjacency = pymetis.CSRAdjacency(indptr, indices)
    _, owner = pymetis.part_graph(
        num_parts, adjacency, vweights=weights, recursive=False if by_volume else None, options=options
    )
    return np.asarray(owner, dtype=np.int64)


def halo_size(graph: Graph, owner: NDArray[np.int64], num_parts: int) -> int:
    """Return how many halo nodes all parts have together: pairs of a node and another part that neighbours it."""
    return int(count(graph, owner, num_parts).traffic.sum())


@dataclass(frozen=True, slots=True)
class Order:
    """The nodes of a graph, part by part.

    Attributes:
        nodes: Global ids, part after part; within a part neighbours near each other. (num_nodes,) int64
        position: Where each node stands in *nodes*. (num_nodes,) int32
        offsets: Where each part begins. (num_parts + 1,) int64
    """

    nodes: NDArray[np.int64]
    position: NDArray[np.int32]
    offsets: NDArray[np.int64]


def order_nodes(graph: Graph, owner: NDArray[np.int64], num_parts: int) -> Order:
    """Put the nodes in order of their parts, and within a part in order of a second, finer METIS partition."""
    block = np.zeros(graph.num_nodes, np.int64)
    adjacency = graph.adjacency() if len(graph.indices) <= LARGE else _thinned(graph)
    for part in range(num_parts):
        members = np.flatnonzero(owner == part)
        block[members] = _blocks(adjacency, members)
    nodes = np.lexsort((block, owner))
    position = np.empty(graph.num_nodes, np.int32)
    position[nodes] = np.arange(graph.num_nodes, dtype=np.int32)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=num_parts))))
    return Order(nodes, position, offsets)


def _thinned(graph: Graph) -> sp.csr_array:
    """Return some edges of each node, evenly spaced among its own, in both directions: enough to show its community."""
    nodes = np.flatnonzero(graph.degrees)
    degrees = graph.degrees[nodes]
    ends = np.concatenate([graph.indices[graph.indptr[nodes] + degrees * turn // _SEEN] for turn in range(_SEEN)])
    indptr, indices, _ = symmetric(edge_matrix(np.tile(nodes, _SEEN), ends, graph.num_nodes))
    return csr_matrix(np.ones(len(indices), np.int8), indices, indptr, graph.num_nodes)


def _blocks(adjacency: sp.csr_array, members: NDArray[np.int64]) -> NDArray[np.int64]:
    num_blocks = len(members) // BLOCK_NODES
    if num_blocks < 2:  # noqa: PLR2004  (one block is no order)
        return np.zeros(len(members), np.int64)
    inside = adjacency[members][:, members].tocsr()
    return _metis(inside.indptr, inside.indices, num_blocks, None, by_volume=False)


def split_parts(graph: Graph, order: Order, chosen: Iterable[int] | None = None) -> Iterator[Part]:
    """Yield the parts one by one, or those *chosen*; only one is in memory at a time."""
    sizes = tuple(int((graph.split == use).sum()) for use in (TRAIN, VAL, TEST))
    strengths = graph.strengths
    for index in range(len(order.offsets) - 1) if chosen is None else chosen:
        yield _part(graph, order, index, (sizes[0], sizes[1], sizes[2]), strengths)


def _part(
    graph: Graph, order: Order, index: int, split_sizes: tuple[int, int, int], strengths: NDArray[np.float64]
) -> Part:
    begin, end = int(order.offsets[index]), int(order.offsets[index + 1])
    num_parts, num_owned = len(order.offsets) - 1, end - begin
    owned = order.nodes[begin:end]
    edges = graph.adjacency()[owned]
    columns = order.position[edges.indices]
    inside = (columns >= begin) & (columns < end)
    outside = ~inside
    is_halo = np.zeros(graph.num_nodes, bool)
    is_halo[columns[outside]] = True
    halo = np.flatnonzero(is_halo)
    place = np.cumsum(is_halo, dtype=np.int32) - 1
    weights = None if graph.weights is None else edges.data
    owned_indptr, owned_indices, owned_weights = _csr(edges.indptr, inside, columns[inside] - begin, weights)
    halo_indptr, halo_indices, halo_weights = _csr(edges.indptr, outside, place[columns[outside]], weights)
    # The graph is symmetric: a node is halo exactly where it has a neighbour, so nobody need be asked what to send.
    owner_of = np.repeat(np.arange(num_parts, dtype=np.int32), np.diff(order.offsets))
    is_sent = np.zeros((num_parts, num_owned), bool)
    rows = np.repeat(np.arange(num_owned, dtype=np.int32), np.diff(halo_indptr))
    is_sent[owner_of[halo][halo_indices], rows] = True
    receivers, send_rows = np.nonzero(is_sent)
    return Part(
        index=index,
        num_nodes=graph.num_nodes,
        num_classes=graph.num_classes,
        split_sizes=split_sizes,
        owned=owned,
        halo=order.nodes[halo],
        halo_counts=np.diff(np.searchsorted(halo, order.offsets)),
        send_rows=send_rows.astype(np.int32),
        send_counts=np.bincount(receivers, minlength=num_parts),
        owned_indptr=owned_indptr,
        owned_indices=owned_indices,
        halo_indptr=halo_indptr,
        halo_indices=halo_indices,
        owned_weights=owned_weights,
        halo_weights=halo_weights,
        strengths=strengths[owned],
        loops=np.ones(num_owned, np.float32) if graph.loops is None else graph.loops[owned],
        features=graph.features[owned],
        labels=graph.labels[owned],
        split=graph.split[owned],
    )


def slice_nodes(graph: Graph, num_parts: int) -> tuple[Adjacency, Iterator[Part]]:
    """Return the whole graph, with neighbours near each other, and its nodes dealt out evenly in that order."""
    order = order_nodes(graph, np.zeros(graph.num_nodes, np.int64), 1)
    offsets = np.arange(num_parts + 1) * graph.num_nodes // num_parts
    edges = graph.adjacency()[order.nodes]
    every = np.ones(edges.nnz, bool)
    weights = None if graph.weights is None else edges.data
    adjacency = Adjacency(offsets, *_csr(edges.indptr, every, order.position[edges.indices], weights))
    return adjacency, _slices(graph, order, offsets)


def _slices(graph: Graph, order: Order, offsets: NDArray[np.int64]) -> Iterator[Part]:
    """Yield the stretches as parts of a graph without edges."""
    without = replace(graph, indptr=np.zeros_like(graph.indptr), indices=np.zeros(0, np.int32), weights=None)
    strengths = graph.strengths
    for part in split_parts(without, replace(order, offsets=offsets)):
        yield replace(part, strengths=strengths[part.owned])


def _csr(
    indptr: NDArray[Any], chosen: NDArray[np.bool_], columns: NDArray[np.int32], weights: NDArray[np.float32] | None
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Return the chosen entries of a CSR matrix as one of their own, ascending within each row.

    Args:
        indptr: The matrix's rows.
        chosen: Which of its entries. (entries,)
        columns: The new column of each chosen entry; it is put in order in place. int32
        weights: Of all entries; None where each is 1.
    """
    counted = np.zeros(len(chosen) + 1, np.int32 if len(chosen) < 1 << 31 else np.int64)
    np.cumsum(chosen, out=counted[1:])
    rows = counted[indptr]
    values = np.ones(len(columns), np.int8) if weights is None else weights[chosen]
    matrix = csr_matrix(values, columns, rows, int(columns.max(initial=0)) + 1)
    matrix.sort_indices()
    kept = np.zeros(0, np.float32) if weights is None else matrix.data
    return rows.astype(np.int64), matrix.indices.astype(np.int32, copy=False), kept
