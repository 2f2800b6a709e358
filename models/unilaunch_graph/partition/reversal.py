"""The reversed part: the same nodes, and the edges out of them, flipped, in place of the edges into them.

Each rank has the edges into its nodes, so an edge goes to the owner of its source. Its place there is known to both:
sources that a rank does not own are its halo, which is the list of rows that their owner sends to it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Ids
from unilaunch_graph.partition.part import Part, ends_and_ids


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
        part: The part, with the owned nodes as they were. Its own arrays of edges are empty.
        ends: Its edges, as in `InEdges`. (2, edges)
        ids: The place of each in the user's list of edges, 0 if there is none. (edges,)
        places: The place of each among those that arrive. (edges,)
    """

    part: Part
    ends: Ids
    ids: Ids
    places: Ids


def leaving_edges(part: Part) -> Leaving:
    """Return the edges into the nodes of *part*, which go to the owners of their sources."""
    (sources, targets), ids = ends_and_ids(part)
    owners = _owners(part)[sources]
    order = np.argsort(owners, kind="stable")  # of 8 or 16 bits: a radix sort
    places = np.concatenate([np.arange(part.num_owned), _numbered(part.halo_counts)])
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
    sources[come], sources[~come] = part.num_owned + np.cumsum(is_halo) - 1, leaving.targets[~go]
    is_sent = _is_new(leaving.targets[go], receivers[go])
    there = replace(
        part, halo=nodes[come][is_halo], halo_counts=np.bincount(senders[come][is_halo], minlength=part.num_parts),
        send_rows=leaving.targets[go][is_sent].astype(np.int32),
        send_counts=np.bincount(receivers[go][is_sent], minlength=part.num_parts), **_NO_EDGES,
    )  # fmt: skip
    places = np.lexsort([ids, nodes, targets])
    return Reversed(there, np.stack([sources, targets])[:, places], ids[places], places)


_NONE: NDArray[np.int64] = np.zeros(0, np.int64)
_NO_EDGES: dict[str, Any] = {
    "owned_indptr": _NONE, "owned_indices": _NONE, "owned_weights": _NONE, "owned_edge_arrays": {},
    "halo_indptr": _NONE, "halo_indices": _NONE, "halo_weights": _NONE, "halo_edge_arrays": {},
}  # fmt: skip


def _owners(part: Part) -> NDArray[Any]:
    """Return the part that owns each owned and each halo node."""
    kind = np.uint8 if part.num_parts <= 1 << 8 else np.uint16
    counts = np.append(part.num_owned, part.halo_counts)
    return np.repeat(np.append(part.index, np.arange(part.num_parts)).astype(kind), counts)


def _numbered(counts: Ids) -> Ids:
    """Return the numbers from 0 to count - 1 of each count."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _is_new(*columns: Ids) -> NDArray[np.bool_]:
    """Return for each row whether it differs from the one before."""
    is_new = np.ones(len(columns[0]), bool)
    is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return is_new
