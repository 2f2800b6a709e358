"""Cut a graph into parts: the order of the nodes, the edges of each part, and the rows that parts exchange."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.data.edges import WIDE, NamedArrays, csr_matrix
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.partition.part import Adjacency, Part
from unilaunch_graph.partition.partitioners import MOST, metis, sketch

#: Nodes of one block in the order within a part: its rows, 128 wide, stay in a core's cache.
BLOCK_NODES = 400
#: METIS's ufactor: a block may have 30 % more nodes than the mean. With this and a sketch the order of 2.2 million
#: edges took 0.33 s in place of 0.47, and products by the parts took the same time.
_UNEVEN = 300
#: Edges of each node that METIS sees for the order. With 4 in place of 16 the order of 500,000 nodes with 10 million
#: edges took 8.5 s of a processor in place of 16.9, that of 100,000 with 4.5 million 0.5 s in place of 1.3; products by
#: the parts took the same time. Without an order they took twice as long, in scipy's reverse_cuthill_mckee's half more.
_SEEN = 4


@dataclass(frozen=True, slots=True)
class Order:
    """The nodes of a graph, part by part.

    Attributes:
        nodes: Global ids, part after part; within a part neighbours near each other. (num_nodes,) int64
        position: Index of each node in *nodes*. (num_nodes,) int32
        offsets: Index of the first node of each part. (num_parts + 1,) int64
    """

    nodes: NDArray[np.int64]
    position: NDArray[np.int32]
    offsets: NDArray[np.int64]


def order_nodes(graph: Graph, owner: NDArray[np.int64], num_parts: int) -> Order:
    """Sort the nodes by part, and within a part by the blocks of a second, finer METIS partition.

    The nodes of a part keep their order where there are more than METIS counts.
    """
    block = np.zeros(graph.num_nodes, np.int64)
    is_counted = 2 * graph.num_nodes <= MOST
    adjacency = sketch(graph, _SEEN) if is_counted else graph.adjacency()
    for part in range(num_parts if is_counted else 0):
        members = np.flatnonzero(owner == part)
        block[members] = _blocks(adjacency, members)
    nodes = np.lexsort((block, owner))
    position = np.empty(graph.num_nodes, np.int32)
    position[nodes] = np.arange(graph.num_nodes, dtype=np.int32)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=num_parts))))
    return Order(nodes, position, offsets)


def _blocks(adjacency: sp.csr_array, members: NDArray[np.int64]) -> NDArray[np.int64]:
    num_blocks = len(members) // BLOCK_NODES
    if num_blocks < 2:  # noqa: PLR2004  (one block gives no order)
        return np.zeros(len(members), np.int64)
    inside = adjacency[members][:, members].tocsr()
    return metis(inside.indptr, inside.indices, num_blocks, None, niter=1, ufactor=_UNEVEN)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The data that all parts share.

    Attributes:
        graph: The graph.
        order: Its nodes, part after part.
        owner_of: The part of each position in the order. (num_nodes,) int32
        split_sizes: Training, validation and test nodes.
        strengths: Sum of the weights of each node's in-edges. (num_nodes,)
        by_source: The edges by their source, if the graph is directed.
    """

    graph: Graph
    order: Order
    owner_of: NDArray[np.int32]
    split_sizes: tuple[int, int, int]
    strengths: NDArray[np.float64]
    by_source: sp.csr_array | None


class _Edges(NamedTuple):
    """Edges of a part, as CSR: row = owned node; weights and other arrays as in `Part`."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32]
    arrays: NamedArrays


def split_parts(graph: Graph, order: Order, chosen: Iterable[int] | None = None) -> Iterator[Part]:
    """Yield all parts, or those *chosen*, one by one; only one is in memory at a time."""
    num_parts = len(order.offsets) - 1
    owner_of = np.repeat(np.arange(num_parts, dtype=np.int32), np.diff(order.offsets))
    by_source = graph.reversed().adjacency() if graph.is_directed else None
    cut = _Cut(graph, order, owner_of, graph.split_sizes, graph.strengths, by_source)
    for index in range(num_parts) if chosen is None else chosen:
        yield _part(cut, index)


def _part(cut: _Cut, index: int) -> Part:
    graph, order = cut.graph, cut.order
    begin, end = int(order.offsets[index]), int(order.offsets[index + 1])
    owned = order.nodes[begin:end]
    edges = _in_edges(graph, owned)
    columns = order.position[edges.indices]
    inside = (columns >= begin) & (columns < end)
    outside = ~inside
    inside_indptr = _indptr(edges.indptr, inside)
    halo, halo_columns = _halo(graph.num_nodes, columns[outside])
    inner = _chosen(graph, edges, inside, inside_indptr, columns[inside] - begin)
    outer = _chosen(graph, edges, outside, edges.indptr - inside_indptr, halo_columns)
    # In a symmetric graph a node is a halo node of exactly the parts of its neighbours: halo edges give the sent rows.
    receivers, send_rows = _sent(cut, index, outer.indptr, cut.owner_of[halo][outer.indices])
    return Part(
        index=index,
        num_nodes=graph.num_nodes,
        num_classes=graph.num_classes,
        split_sizes=cut.split_sizes,
        is_directed=graph.is_directed,
        owned=owned,
        halo=order.nodes[halo],
        halo_counts=np.diff(np.searchsorted(halo, order.offsets)),
        send_rows=send_rows.astype(np.int32),
        send_counts=np.bincount(receivers, minlength=len(order.offsets) - 1),
        owned_indptr=inner.indptr,
        owned_indices=inner.indices,
        halo_indptr=outer.indptr,
        halo_indices=outer.indices,
        owned_weights=inner.weights,
        halo_weights=outer.weights,
        owned_edge_arrays=inner.arrays,
        halo_edge_arrays=outer.arrays,
        strengths=cut.strengths[owned],
        loops=np.ones(len(owned), np.float32) if graph.loops is None else graph.loops[owned],
        features=graph.features[owned],
        labels=graph.labels[owned],
        split=graph.split[owned],
        node_arrays={name: array[owned] for name, array in graph.node_arrays.items()},
    )


def _halo(num_nodes: int, columns: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the halo nodes' positions in the order, ascending, and for each of *columns* its index among them."""
    is_halo = np.zeros(num_nodes, bool)
    is_halo[columns] = True
    return np.flatnonzero(is_halo), (np.cumsum(is_halo, dtype=np.int32) - 1)[columns]


def _indptr(indptr: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[Any]:
    """Return where the chosen entries of each row of a CSR matrix begin. (rows + 1,)"""
    counted: NDArray[Any] = np.zeros(len(chosen) + 1, np.int32 if len(chosen) < WIDE else np.int64)
    np.cumsum(chosen, out=counted[1:])
    begins: NDArray[Any] = counted[indptr]
    return begins


def _chosen(
    graph: Graph, edges: sp.csr_array, chosen: NDArray[np.bool_], indptr: NDArray[Any], columns: NDArray[np.int32]
) -> _Edges:
    """Return the chosen edges of `_in_edges`, with the rows *indptr* and these columns."""
    values = edges.data[chosen] if graph.edge_arrays or graph.weights is not None else None
    rows, indices, kept = _csr(indptr, columns, values)
    return _Edges(rows, indices, *_edge_values(graph, kept))


def _sent(
    cut: _Cut, index: int, halo_indptr: NDArray[np.int64], halo_owners: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the receiver of each row that the part sends, ascending, and the row: an owned node.

    Args:
        cut: The cut.
        index: The part.
        halo_indptr: CSR of the edges from halo nodes.
        halo_owners: Owner of the halo node of each such edge.
    """
    begin, end = cut.order.offsets[index], cut.order.offsets[index + 1]
    indptr, owners = halo_indptr, halo_owners
    if cut.by_source is not None:
        out = cut.by_source[cut.order.nodes[begin:end]]
        indptr, owners = out.indptr, cut.owner_of[cut.order.position[out.indices]]
    is_sent = np.zeros((len(cut.order.offsets) - 1, end - begin), bool)
    is_sent[owners, np.repeat(np.arange(end - begin, dtype=np.int32), np.diff(indptr))] = True
    is_sent[index] = False
    receivers, send_rows = np.nonzero(is_sent)
    return receivers, send_rows


def _in_edges(graph: Graph, owned: NDArray[np.int64]) -> sp.csr_array:
    """Return the in-edges of *owned*; their values are weights, or places in *graph* if edges have further arrays."""
    if not graph.edge_arrays:
        return graph.adjacency()[owned]
    places = np.arange(len(graph.indices), dtype=np.int32 if len(graph.indices) < WIDE else np.int64)
    return csr_matrix(places, graph.indices, graph.indptr, graph.num_nodes)[owned]


def _edge_values(graph: Graph, values: NDArray[Any]) -> tuple[NDArray[np.float32], NamedArrays]:
    """Return weights and further arrays of edges from the values of `_in_edges`."""
    if not graph.edge_arrays:
        return values, {}
    weights = np.zeros(0, np.float32) if graph.weights is None else graph.weights[values]
    return weights, {name: array[values] for name, array in graph.edge_arrays.items()}


def slice_nodes(graph: Graph, num_parts: int) -> tuple[Adjacency, Iterator[Part]]:
    """Return the whole graph in an order with neighbours near each other, and parts with equal numbers of nodes."""
    structure = graph.structure() if graph.is_directed else graph
    order = order_nodes(structure, np.zeros(graph.num_nodes, np.int64), 1)
    offsets = np.arange(num_parts + 1) * graph.num_nodes // num_parts
    edges = graph.adjacency()[order.nodes]
    weights = None if graph.weights is None else edges.data
    adjacency = Adjacency(offsets, *_csr(edges.indptr, order.position[edges.indices], weights))
    return adjacency, _slices(graph, order, offsets)


def _slices(graph: Graph, order: Order, offsets: NDArray[np.int64]) -> Iterator[Part]:
    """Yield the ranges of nodes as parts of a graph without edges."""
    none = np.zeros(0, np.int32)
    without = replace(graph, indptr=np.zeros_like(graph.indptr), indices=none, weights=None, edge_arrays={})
    strengths = graph.strengths
    for part in split_parts(without, replace(order, offsets=offsets)):
        yield replace(part, strengths=strengths[part.owned])


def _csr(
    indptr: NDArray[Any], columns: NDArray[np.int32], values: NDArray[Any] | None
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]:
    """Return a CSR matrix with ascending columns in each row.

    Args:
        indptr: Its rows.
        columns: The column of each entry; the array is sorted in place. int32
        values: The value of each entry; None if there are none, then an empty array is returned.
    """
    carried = np.ones(len(columns), np.int8) if values is None else values
    matrix = csr_matrix(carried, columns, indptr, int(columns.max(initial=0)) + 1)
    matrix.sort_indices()
    kept = np.zeros(0, np.float32) if values is None else matrix.data
    return indptr.astype(np.int64), matrix.indices.astype(np.int32, copy=False), kept
