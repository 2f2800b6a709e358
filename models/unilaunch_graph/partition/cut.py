"""From an ordered graph to its parts: each learns its edges, and whom it exchanges rows with."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.data.graph import TEST, TRAIN, VAL, Graph, csr_matrix
from unilaunch_graph.partition.order import Order, order_nodes
from unilaunch_graph.partition.part import Adjacency, Part


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
