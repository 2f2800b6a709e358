"""Cut a graph into parts: METIS decides who owns a node, and each part learns whom it exchanges rows with."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_gcn.graph import TEST, TRAIN, VAL, Features, Graph

#: METIS_OBJTYPE_VOL: total communication volume, for k-way partitioning only.
_VOLUME = 1
#: Nodes of one block in the order within a part: its rows, 128 wide, stay in a core's cache.
BLOCK_NODES = 400


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
        degrees: Degree of the owned nodes in the whole graph. (num_owned,) int64
        halo_degrees: Degree of the halo nodes in the whole graph. (num_halo,) int64
        features: Rows of the owned nodes. (num_owned, num_features) float32, dense or CSR
        labels: Classes of the owned nodes, -1 where unknown. (num_owned,) int64
        split: NONE, TRAIN, VAL or TEST of the owned nodes. (num_owned,) uint8
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
    degrees: NDArray[np.int64]
    halo_degrees: NDArray[np.int64]
    features: Features
    labels: NDArray[np.int64]
    split: NDArray[np.uint8]

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
    graphs, by up to 29 %, and worse on some. The seed is fixed: the same graph gives the same parts.

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
    volume = _metis(graph.indptr, graph.indices, num_parts, weights, by_volume=True)
    cut = _metis(graph.indptr, graph.indices, num_parts, weights, by_volume=False)
    return min((volume, cut), key=lambda owner: halo_size(graph, owner, num_parts))


def _weights(graph: Graph, balance: str) -> NDArray[np.int64] | None:
    if balance == "edges":
        return graph.degrees + 1
    if balance == "train":
        # A little for every node: METIS would else put all others into one part.
        return np.where(graph.split == TRAIN, max(1, graph.num_nodes // max(1, int((graph.split == TRAIN).sum()))), 1)
    return None


def _metis(
    indptr: NDArray[np.int64],
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
    sources = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    remote = owner[graph.indices]
    crossing = owner[sources] != remote
    return len(np.unique(sources[crossing] * num_parts + remote[crossing]))


@dataclass(frozen=True, slots=True)
class Order:
    """The nodes of a graph, part by part.

    Attributes:
        nodes: Global ids, part after part; within a part neighbours near each other. (num_nodes,) int64
        position: Where each node stands in *nodes*. (num_nodes,) int64
        offsets: Where each part begins. (num_parts + 1,) int64
    """

    nodes: NDArray[np.int64]
    position: NDArray[np.int64]
    offsets: NDArray[np.int64]


def order_nodes(graph: Graph, owner: NDArray[np.int64], num_parts: int) -> Order:
    """Put the nodes in order of their parts, and within a part in order of a second, finer METIS partition."""
    block = np.zeros(graph.num_nodes, np.int64)
    for part in range(num_parts):
        members = np.flatnonzero(owner == part)
        block[members] = _blocks(graph, members)
    nodes = np.lexsort((block, owner))
    position = np.empty_like(nodes)
    position[nodes] = np.arange(graph.num_nodes)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=num_parts))))
    return Order(nodes, position, offsets)


def _blocks(graph: Graph, members: NDArray[np.int64]) -> NDArray[np.int64]:
    num_blocks = len(members) // BLOCK_NODES
    if num_blocks < 2:  # noqa: PLR2004  (one block is no order)
        return np.zeros(len(members), np.int64)
    whole = sp.csr_array(
        (np.ones(len(graph.indices), np.int8), graph.indices, graph.indptr), shape=(graph.num_nodes, graph.num_nodes)
    )
    inside = whole[members][:, members].tocsr()
    return _metis(inside.indptr.astype(np.int64), inside.indices, num_blocks, None, by_volume=False)


def split_parts(graph: Graph, order: Order) -> Iterator[Part]:
    """Yield the parts one by one; only one is in memory at a time."""
    sizes = tuple(int((graph.split == use).sum()) for use in (TRAIN, VAL, TEST))
    for index in range(len(order.offsets) - 1):
        yield _part(graph, order, index, (sizes[0], sizes[1], sizes[2]))


def _part(graph: Graph, order: Order, index: int, split_sizes: tuple[int, int, int]) -> Part:
    begin, end = order.offsets[index], order.offsets[index + 1]
    owned = order.nodes[begin:end]
    degrees = graph.degrees
    rows = np.repeat(np.arange(len(owned)), degrees[owned])
    columns = order.position[graph.indices[_entries(graph.indptr, owned)]]
    inside = (columns >= begin) & (columns < end)
    halo, halo_columns = np.unique(columns[~inside], return_inverse=True)
    owners = np.searchsorted(order.offsets, columns[~inside], side="right") - 1
    # The graph is symmetric: a node is halo exactly where it has a neighbour, so nobody need be asked what to send.
    sent = np.unique(owners * max(1, len(owned)) + rows[~inside])
    receivers, send_rows = np.divmod(sent, max(1, len(owned)))
    num_parts = len(order.offsets) - 1
    owned_indptr, owned_indices = _csr(rows[inside], columns[inside] - begin, len(owned))
    halo_indptr, halo_indices = _csr(rows[~inside], halo_columns, len(owned))
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
        degrees=degrees[owned],
        halo_degrees=degrees[order.nodes[halo]],
        features=graph.features[owned],
        labels=graph.labels[owned],
        split=graph.split[owned],
    )


def _entries(indptr: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of the entries of *rows* in a CSR matrix, row after row."""
    counts = indptr[rows + 1] - indptr[rows]
    ends = np.cumsum(counts)
    begins: NDArray[np.int64] = np.repeat(indptr[rows] - (ends - counts), counts)
    return begins + np.arange(len(begins))


def _csr(
    rows: NDArray[np.int64], columns: NDArray[np.int64], num_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return indptr and indices of entries that come row by row, ascending within each row."""
    by_row = np.lexsort((columns, rows))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=num_rows)))).astype(np.int64)
    return indptr, columns[by_row].astype(np.int32)
