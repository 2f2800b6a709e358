"""The reversed part: the same nodes, and the edges out of them, turned round, in place of the edges into them.

Each rank has the edges into its nodes, so an edge goes to the owner of its source. Its place there is known to both:
sources that a rank does not own are its halo, which is the list of rows that their owner sends to it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Ids
from unilaunch_graph.data.edges import EDGE_IDS, NamedArrays
from unilaunch_graph.partition.part import Part, edge_ids, in_edge_ends


class Leaving(NamedTuple):
    """The edges into a part's nodes, on their way to the owners of their sources.

    Attributes:
        order: The place of each in `InEdges`: they are sorted by owner, and then as there. (edges,)
        targets: Local index of each edge's target. (edges,)
        rows: What travels: the source, as its place among the owner's nodes or among the rows that the owner sends to
            this part; the target's global id; the place in the user's list of edges, 0 if there is none. (edges, 3)
        counts: Edges to each part. (num_parts,)
    """

    order: Ids
    targets: Ids
    rows: Ids
    counts: Ids


class Reversed(NamedTuple):
    """A reversed part, and how rows of edges come to it.

    Attributes:
        part: The part. Its edges have no weights, and no arrays but `EDGE_IDS`: `places` brings these. *strengths* and
            *loops* are as they were.
        places: The place of each of its `InEdges` among those that arrive. (edges,)
    """

    part: Part
    places: Ids


def leaving_edges(part: Part) -> Leaving:
    """Return the edges into the nodes of *part*, which go to the owners of their sources."""
    sources, targets = in_edge_ends(part)
    owners = _owners(part)[sources]
    order = np.argsort(owners, kind="stable")
    places = np.concatenate([np.arange(part.num_owned), _numbered(part.halo_counts)])
    ids = edge_ids(part)
    rows = np.stack([places[sources], part.owned[targets], np.zeros_like(sources) if ids is None else ids], 1)
    return Leaving(order, targets[order], rows[order], np.bincount(owners, minlength=part.num_parts))


def reverse_part(part: Part, leaving: Leaving, arrived: Ids, counts: Sequence[int]) -> Reversed:
    """Return the reversed part of *part*.

    Args:
        part: The part.
        leaving: Its edges.
        arrived: The *rows* of `Leaving` that each part has for this one, one part after the other. (edges, 3)
        counts: How many are of each. (num_parts,)
    """
    ranks = np.arange(part.num_parts)
    senders, receivers = np.repeat(ranks, counts), np.repeat(ranks, leaving.counts)
    come, go = senders != part.index, receivers != part.index  # from other parts, and to them
    targets, nodes, ids = arrived.T.copy()
    begins = np.cumsum(part.send_counts) - part.send_counts
    targets[come] = part.send_rows[begins[senders[come]] + targets[come]]
    is_halo = _is_new(nodes[come])  # each part's edges come by its nodes, in its order
    sources = np.empty_like(targets)
    sources[come], sources[~come] = np.cumsum(is_halo) - 1, leaving.targets[~go]
    is_sent = _is_new(leaving.targets[go], receivers[go])
    of_user = ids if EDGE_IDS in part.owned_edge_arrays else None
    inner, outer = (_csr(targets, sources, of_user, chosen, part.num_owned) for chosen in (~come, come))
    none = np.zeros(0, np.float32)
    turned = replace(
        part, halo=nodes[come][is_halo], halo_counts=np.bincount(senders[come][is_halo], minlength=part.num_parts),
        send_rows=leaving.targets[go][is_sent].astype(np.int32),
        send_counts=np.bincount(receivers[go][is_sent], minlength=part.num_parts),
        owned_indptr=inner.indptr, owned_indices=inner.indices, owned_edge_arrays=inner.arrays, owned_weights=none,
        halo_indptr=outer.indptr, halo_indices=outer.indices, halo_edge_arrays=outer.arrays, halo_weights=none,
    )  # fmt: skip
    return Reversed(turned, np.lexsort([ids, nodes, targets]))


class _Edges(NamedTuple):
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    arrays: NamedArrays


def _csr(targets: Ids, sources: Ids, ids: Ids | None, chosen: NDArray[np.bool_], num_targets: int) -> _Edges:
    """Return the chosen edges by target, then by source."""
    places = np.flatnonzero(chosen)
    places = places[np.lexsort([sources[places], targets[places]])]
    degrees = np.bincount(targets[places], minlength=num_targets)
    arrays = {} if ids is None else {EDGE_IDS: ids[places]}
    return _Edges(np.concatenate([[0], np.cumsum(degrees)]), sources[places].astype(np.int32), arrays)


def _owners(part: Part) -> Ids:
    """Return the part that owns each owned and each halo node."""
    others = np.repeat(np.arange(part.num_parts), part.halo_counts)
    return np.concatenate([np.full(part.num_owned, part.index), others])


def _numbered(counts: Ids) -> Ids:
    """Return the numbers from 0 to count - 1 of each count."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _is_new(*columns: Ids) -> NDArray[np.bool_]:
    """Return for each row whether it differs from the one before."""
    is_new = np.ones(len(columns[0]), bool)
    is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return is_new
