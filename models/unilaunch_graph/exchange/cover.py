"""Rows or partial sums: the fewest messages that serve every edge between two parts.

A sum over in-edges with constant weights needs, for each edge from another part, either the row of the edge's source,
or a partial sum that the other part makes for the edge's target. The edges between two parts are a bipartite graph of
sources and targets. A choice serves all edges if it is a vertex cover of this graph, and the smallest cover is as large
as a maximum matching (Koenig 1931): `smallest_cover`. So the messages are never more than the halo rows.

1. A receiver has all edges into its nodes. It chooses, owner by owner, and tells each owner once: which rows it needs,
   and which rows and weights make each partial sum. Only one side computes, so both sides have the same plan.
2. In each exchange one message goes from each part to each other: first rows, then partial sums, in the order of the
   receiver's nodes.
3. What arrives is multiplied as halo rows are (`Messages.arriving`): a row by the weight of each edge that it serves, a
   partial sum by 1. The transpose of a plan serves the transposed product, with as many messages.

The plan depends on the edges alone, not on clocks: every run has the same one, and gives the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching

from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.arrays import Ids, Indices
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.part import Part

#: Halo edges of a part for which smallest covers are searched, within about 5 s; for those beyond, rows alone are sent.
#: A bound in seconds would give other plans, and other bits, in other runs.
MOST_EDGES = 1 << 23


class Entries(NamedTuple):
    """A sparse matrix by rows.

    Attributes:
        indptr: Where each row begins. (rows + 1,) int64
        indices: Column of each entry. int32
        weights: Of each entry; of no length if each is 1. float32
    """

    indptr: Ids
    indices: Indices
    weights: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Messages:
    """What a rank sends in an exchange, and what it makes of what arrives.

    The message to each rank has first rows, then partial sums.

    Attributes:
        leaving: What is sent, grouped by receiver; a row has one entry, of weight 1. (what is sent, num_owned)
        row_counts: How many rows are sent to each rank. (num_parts,)
        send_counts: How many rows and partial sums. (num_parts,)
        receive_counts: How many rows and partial sums arrive from each rank. (num_parts,)
        arriving: The in-edges of the owned nodes from what arrives. (num_owned, what arrives)
    """

    leaving: Entries
    row_counts: Ids
    send_counts: Ids
    receive_counts: Ids
    arriving: Entries

    @classmethod
    def of_rows(cls, part: Part) -> "Messages":
        """Return the exchange of the halo rows alone."""
        leaving = Entries(np.arange(len(part.send_rows) + 1), part.send_rows, part.halo_weights[:0])
        arriving = Entries(part.halo_indptr, part.halo_indices, part.halo_weights)
        return cls(leaving, part.send_counts, part.send_counts, part.halo_counts, arriving)

    @property
    def send_rows(self) -> Indices:
        """The owned rows that are sent as rows, grouped by receiver. (rows sent,) int32"""
        is_row = np.concatenate([
            np.arange(count) < rows for count, rows in zip(self.send_counts, self.row_counts, strict=True)
        ])  # fmt: skip
        rows: Indices = self.leaving.indices[self.leaving.indptr[:-1][is_row]]
        return rows

    def sums(self, rank: int) -> Entries:
        """Return the partial sums for a rank, as a matrix of the owned rows."""
        end = int(self.send_counts[: rank + 1].sum())
        begin = end - int(self.send_counts[rank] - self.row_counts[rank])
        indptr, indices, weights = self.leaving
        entries = slice(int(indptr[begin]), int(indptr[end]))
        return Entries(indptr[begin : end + 1] - entries.start, indices[entries], weights[entries])


def smallest_cover(pairs: sp.csr_array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return a smallest vertex cover of a bipartite graph, of these the one with the fewest columns.

    A row without a partner in a maximum matching is in no smallest cover, so its columns are in each; their partners
    then are in none, and so on along all alternating paths. The rows that no such path reaches cover all else.

    Args:
        pairs: The edges, one entry for each: a row and a column. (rows, columns)

    Returns:
        Which rows and which columns are in the cover. (rows,) and (columns,)
    """
    num_rows, num_columns = pairs.shape
    partner = maximum_bipartite_matching(pairs, perm_type="column")
    alone, matched = np.flatnonzero(partner < 0), np.flatnonzero(partner >= 0)
    # One vertex for each row and each column, and one from which the search begins.
    root = num_rows + num_columns
    begins = [np.repeat(np.arange(num_rows), np.diff(pairs.indptr)), partner[matched] + num_rows]
    ends = [pairs.indices + num_rows, matched]
    begins.append(np.full(len(alone), root))
    ends.append(alone)
    paths = (np.concatenate(begins), np.concatenate(ends))
    steps = sp.csr_array((np.ones(len(paths[0]), np.int8), paths), shape=(root + 1, root + 1))
    reached = np.zeros(root + 1, bool)
    reached[breadth_first_order(steps, root, return_predecessors=False)] = True
    return ~reached[:num_rows], reached[num_rows:root]


def plan_messages(part: Part, collectives: Collectives, meter: Meter) -> Messages:
    """Return the fewest messages that serve all edges between the parts. All ranks must call it.

    Args:
        part: This rank's part; it may have edges to some of its nodes only.
        collectives: The ranks' collectives on host arrays.
        meter: Counts the bytes that arrive, and the time spent waiting.
    """

    def swap(rows: NDArray[Any], send_counts: Ids, receive_counts: Ids) -> NDArray[Any]:
        received = np.zeros((int(receive_counts.sum()), rows.shape[1]), rows.dtype)
        with meter.communication():
            collectives.exchange(rows, send_counts.tolist(), received, receive_counts.tolist()).wait()
        meter.received(received.nbytes)
        return received

    present = np.ones(1)
    collectives.all_reduce(present)
    if present[0] != part.num_parts:  # collectives over which nothing moves, as `plan` measures with
        return Messages.of_rows(part)
    values = part.halo_weights if len(part.halo_weights) else np.ones(len(part.halo_indices), np.float32)
    shape = len(part.halo_indptr) - 1, part.num_halo
    edges = sp.csr_array((values, part.halo_indices, part.halo_indptr), shape=shape).tocsc()
    ends = np.cumsum(part.halo_counts)
    choices = _choose_all([edges[:, end - count : end] for end, count in zip(ends, part.halo_counts, strict=True)])
    asked, every = np.array([choice.sizes for choice in choices]), np.ones(part.num_parts, np.int64)
    told = swap(asked, every, every)
    lengths = np.concatenate([np.diff(choice.leaving.indptr) for choice in choices]).astype(np.int32)
    lengths = swap(lengths[:, None], asked[:, 1], told[:, 1])
    places = np.concatenate([choice.leaving.indices for choice in choices]).astype(np.int32)
    weights = np.concatenate([choice.leaving.data for choice in choices])
    entries = swap(np.stack([places, weights.view(np.int32)], 1), asked[:, 2], told[:, 2])
    begins = np.repeat(np.cumsum(part.send_counts) - part.send_counts, told[:, 2])
    leaving = Entries(
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        part.send_rows[begins + entries[:, 0]],
        _without_ones(entries[:, 1].copy().view(np.float32)),
    )
    arriving = sp.hstack([choice.arriving for choice in choices], format="csc").tocsr()
    return Messages(
        leaving,
        row_counts=told[:, 0],
        send_counts=told[:, 1],
        receive_counts=asked[:, 1],
        arriving=Entries(
            arriving.indptr.astype(np.int64), arriving.indices.astype(np.int32), _without_ones(arriving.data)
        ),
    )


class _Choice(NamedTuple):
    """How the edges from one owner are served.

    Attributes:
        num_rows: How many of its halo rows travel.
        leaving: These rows, then the partial sums. (what travels, its halo rows)
        arriving: The in-edges from what travels. (rows of the part, what travels)
    """

    num_rows: int
    leaving: sp.csr_array
    arriving: sp.csc_array

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, rows and partial sums, and their entries."""
        return self.num_rows, self.leaving.shape[0], self.leaving.nnz


def _choose_all(of_owners: Sequence[sp.csc_array]) -> list[_Choice]:
    """Return how the edges from each owner are served; beyond MOST_EDGES of them, those from most edges by rows."""
    counts = np.array([edges.nnz for edges in of_owners])
    ascending = np.argsort(counts, kind="stable")
    is_searched = np.empty(len(counts), bool)
    is_searched[ascending] = np.cumsum(counts[ascending]) <= MOST_EDGES
    return [_choose(edges, searches=bool(one)) for edges, one in zip(of_owners, is_searched, strict=True)]


def _choose(edges: sp.csc_array, *, searches: bool) -> _Choice:
    """Return how the edges from one owner are served.

    Args:
        edges: Their weights; parallel edges are entries of their own. (rows of the part, halo rows of the owner)
        searches: Whether a smallest cover is searched; if not, rows alone are sent.
    """
    is_row = np.ones(edges.shape[1], bool)
    if searches and edges.nnz:
        targets, columns = np.unique(edges.indices, return_inverse=True)
        entries = np.ones(edges.nnz, np.int8), columns, edges.indptr
        pairs = sp.csr_array(entries, shape=(len(is_row), len(targets)), copy=True)
        pairs.sum_duplicates()  # in place
        is_row = smallest_cover(pairs)[0]
    rows, summed = np.flatnonzero(is_row), np.flatnonzero(~is_row)
    by_sums = edges[:, summed].tocsr()
    targets = np.flatnonzero(np.diff(by_sums.indptr))
    sums = by_sums[targets]
    sums = sp.csr_array((sums.data, summed[sums.indices], sums.indptr), shape=(len(targets), len(is_row)))
    return _Choice(
        len(rows),
        sp.vstack([_units(rows, len(is_row)).T, sums], format="csr"),
        sp.hstack([edges[:, rows], _units(targets, edges.shape[0])], format="csc"),
    )


def _units(places: NDArray[Any], size: int) -> sp.csc_array:
    """Return a matrix whose columns have one entry each, 1 at a place. (size, places)"""
    columns = np.ones(len(places), np.float32), places, np.arange(len(places) + 1)
    return sp.csc_array(columns, shape=(size, len(places)))


def _without_ones(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the weights; none if each is 1."""
    return weights[:0] if (weights == 1).all() else weights
