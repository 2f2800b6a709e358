"""Exact pruning: a training epoch leaves out the rows that cannot change the loss of a training node.

The loss reads the scores of the training nodes only. A layer makes a node's row from the rows of the node and of its
neighbours. So the rows that must leave the last layer are those of the training nodes, and the rows that must enter a
layer are those that must leave it and those of their neighbours. All others have the gradient 0. Leaving them out
changes neither the loss nor a gradient of a weight: X^T G is a sum over rows, and a row of G that is 0 adds nothing.

1. `reach` finds these rows once, from the last layer to the first: a rank flags its own rows, one exchange brings the
   flags of the halo nodes, and a product with the edges flags the neighbours. Where more than half of all nodes are
   flagged, a layer keeps all rows (`reach.is_pruned`); all ranks decide alike, by a sum over ranks.
2. The rows of a layer stand one after the other without gaps, in the order of the owned nodes. Dense products, ReLU,
   norms and the loss work on such rows as on all; a dropout mask is a function of the node's global id.
3. `prune` makes two restricted parts for each layer, each with its own exchange, of the rows that it needs alone:
   forward  rows that leave the layer x rows that enter it: A_hat H
   backward rows that enter the layer x rows that leave it: A_hat.T G; A_hat is symmetric but for its scaling
   A receiver tells each owner once which halo rows it needs forward. Backward these are the halo rows that are flagged.
4. An evaluation uses the whole part.

Only an undirected graph is pruned: gcn and sage, on the host, where ranks divide nodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_gcn.aggregation import Aggregation, DiagonalScaling
from unilaunch_gcn.reach import has_flagged, is_pruned
from unilaunch_graph.arrays import Rows
from unilaunch_graph.data.graph import TRAIN
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.kernels.portable import IDENTITY, Epilogue, Nonlinearity
from unilaunch_graph.operators.halo_edges import HaloEdges, covering
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.statistics import Flags


@dataclass(frozen=True, slots=True)
class Reach:
    """The rows of a part that enter a layer, or leave the last one.

    Attributes:
        owned: (num_owned,)
        halo: (num_halo,)
    """

    owned: Flags
    halo: Flags


class Selection:
    """Take some rows of an array; the transpose fills the other rows with zeros.

    Args:
        chosen: Which of the rows. (rows,)
    """

    def __init__(self, chosen: Flags) -> None:
        self.places, self.num_rows = np.flatnonzero(chosen), len(chosen)

    def matmat(self, rows: Rows) -> Rows:
        """Return the chosen rows."""
        return rows[self.places]

    def rmatmat(self, rows: Rows) -> Rows:
        """Return the rows in their places among zeros."""
        placed = np.zeros((self.num_rows, rows.shape[1]), rows.dtype)
        placed[self.places] = rows
        return placed


@dataclass(frozen=True, slots=True)
class PrunedLayer:
    """The rows of one layer in a training epoch.

    Attributes:
        entering: Owned nodes whose rows enter the layer: local indices, ascending.
        leaving: Owned nodes whose rows leave it; each of them enters it too.
        aggregate: A_hat from the one to the other.
        selection: The rows that leave, among those that enter.
    """

    entering: NDArray[np.int64]
    leaving: NDArray[np.int64]
    aggregate: "Aggregation | PrunedAggregation"
    selection: Selection


class PrunedAggregation:
    """A_hat from the rows that enter a layer to those that leave it.

    Args:
        forward: The edges to the rows that leave.
        backward: The edges to the rows that enter.
        scaling: The normalisation of all owned rows.
        entering: The owned rows that enter the layer. (num_owned,)
        leaving: Those that leave it. (num_owned,)
    """

    def __init__(
        self, forward: HaloEdges, backward: HaloEdges, scaling: DiagonalScaling, entering: Flags, leaving: Flags
    ) -> None:
        self.edges, self.edges_back = forward, backward
        self.scaling, self.scaling_back = (
            scaling.restricted(entering, leaving), scaling.transposed.restricted(leaving, entering)
        )  # fmt: skip
        self.selection = Selection(leaving[entering])

    def matmat(self, rows: Rows) -> Rows:
        """Return the leaving rows of A_hat @ H; all ranks must call it."""
        return self._product(self.scaling.scaled(rows), IDENTITY)

    def of_product(self, multiply: Callable[[Epilogue], Rows], then: Nonlinearity) -> Rows:
        """Return the leaving rows of A_hat @ H, as `Aggregation.of_product`; all ranks must call it."""
        return self._product(self.scaling.scaled_product(multiply), then)

    def _product(self, scaled: Rows, then: Nonlinearity) -> Rows:
        own = scaled if self.scaling.loops is None else self.selection.matmat(scaled)
        return self.edges.matmat(scaled, partial(self.scaling.finish, own, then=then))

    def rmatmat(self, rows: Rows) -> Rows:
        """Return the entering rows of A_hat.T @ G; all ranks must call it."""
        return self._back(self.scaling_back.scaled(rows))

    def rmatmat_scaled(self, rows: Rows) -> Rows:
        """Return the same of a G that has been multiplied by `back_factors`."""
        return self._back(self.scaling_back.rounded(rows))

    def _back(self, scaled: Rows) -> Rows:
        own = scaled if self.scaling.loops is None else self.selection.rmatmat(scaled)
        return self.edges_back.matmat(scaled, partial(self.scaling_back.finish, own))

    @property
    def back_factors(self) -> Any:
        """What `rmatmat` multiplies each row by before all else; None: nothing. (leaving rows, 1)"""
        return self.scaling_back.right


class FlagExchange:
    """Exchanges of one flag for each halo row, when a network is built.

    Args:
        part: The part.
        halo: The exchange of its halo rows.
    """

    def __init__(self, part: Part, halo: HaloExchange) -> None:
        self.part, self.collectives, self.meter = part, halo.collectives, halo.meter

    def to_halo(self, owned: Flags) -> Flags:
        """Return the flags of the halo nodes from those of the owned nodes; all ranks must call it."""
        return self._exchange(owned[self.part.send_rows], self.part.send_counts, self.part.halo_counts)

    def to_owners(self, halo: Flags) -> Flags:
        """Return the flags that the receivers gave to the rows of `Part.send_rows`; all ranks must call it."""
        return self._exchange(halo, self.part.halo_counts, self.part.send_counts)

    def _exchange(self, flags: Flags, send_counts: NDArray[np.int64], receive_counts: NDArray[np.int64]) -> Flags:
        sent, received = flags.astype(np.uint8)[:, None], np.zeros((int(receive_counts.sum()), 1), np.uint8)
        with self.meter.communication():
            self.collectives.exchange(sent, send_counts.tolist(), received, receive_counts.tolist()).wait()
        self.meter.received(received.nbytes)
        found: Flags = received[:, 0] != 0
        return found


def reach(part: Part, flags: FlagExchange, num_layers: int) -> list[Reach]:
    """Return the rows that enter each layer in a training epoch, and those that leave the last one, as `reached`.

    All ranks must call it.

    Args:
        part: This rank's part.
        flags: The exchange of flags.
        num_layers: Number of layers.
    """
    levels: list[Reach] = []
    every = Reach(np.ones(part.num_owned, bool), np.ones(part.num_halo, bool))
    owned: Flags = part.split == TRAIN
    while len(levels) <= num_layers:
        counts = np.array([owned.sum(), part.num_owned], np.float64)
        flags.collectives.all_reduce(counts)
        if not is_pruned(int(counts[0]), int(counts[1])):
            return [every] * (num_layers + 1 - len(levels)) + levels
        levels.insert(0, Reach(owned, flags.to_halo(owned)))
        owned = owned | has_flagged(part.owned_indptr, part.owned_indices, owned)
        owned |= has_flagged(part.halo_indptr, part.halo_indices, levels[0].halo)
    return levels


def prune(part: Part, full: Aggregation, exchanges: Sequence[int]) -> list[PrunedLayer]:
    """Return the layers of a training epoch; none if each needs all rows. All ranks must call it.

    Args:
        part: This rank's part.
        full: A_hat of the whole part, over its halo on the host.
        exchanges: How many halo exchanges an epoch of each layer has: none, forward, or forward and backward.
    """
    edges = full.edges
    if not isinstance(edges, HaloEdges):  # else the edges are directed, or ranks divide columns
        return []
    halo = edges.halo
    flags = FlagExchange(part, halo)
    levels = reach(part, flags, len(exchanges))
    if levels[0] is levels[-1]:
        return []

    def edges_of(restricted: Part) -> HaloEdges:
        exchange = HaloExchange(restricted, halo.collectives, halo.meter, rounds=halo.rounds)
        if halo.sums:
            exchange = covering(exchange, edges.kernels, edges.pool)
        return HaloEdges(restricted, exchange, edges.kernels, edges.pool)

    def aggregate(entering: Reach, leaving: Reach) -> PrunedAggregation:
        needed = _columns(part.halo_indptr, part.halo_indices, leaving.owned, part.num_halo)
        forward = restrict(part, leaving.owned, entering.owned, needed, flags.to_owners(needed))
        backward = restrict(part, entering.owned, leaving.owned, leaving.halo, leaving.owned[part.send_rows])
        return PrunedAggregation(edges_of(forward), edges_of(backward), full.scaling, entering.owned, leaving.owned)

    return [
        PrunedLayer(
            np.flatnonzero(entering.owned),
            np.flatnonzero(leaving.owned),
            aggregate(entering, leaving) if count and leaving is not entering else full,
            Selection(leaving.owned[entering.owned]),
        )
        for count, (entering, leaving) in zip(exchanges, pairwise(levels), strict=True)
    ]


def restrict(part: Part, rows: Flags, columns: Flags, halo: Flags, sent: Flags) -> Part:
    """Return a part whose edges go from some nodes to some others; what it says of its nodes' data is the whole part's.

    Args:
        part: The whole part.
        rows: Owned nodes whose in-edges are kept. (num_owned,)
        columns: Owned nodes from which edges are kept: the owned nodes of the new part. (num_owned,)
        halo: Halo nodes from which edges are kept. (num_halo,)
        sent: Rows of `Part.send_rows` that their receivers keep. (num_sent,)
    """
    owned = _restricted(part.owned_indptr, part.owned_indices, part.owned_weights, rows, columns)
    remote = _restricted(part.halo_indptr, part.halo_indices, part.halo_weights, rows, halo)
    places, ranks = np.cumsum(columns) - 1, np.arange(part.num_parts)
    return replace(
        part,
        owned=part.owned[columns],
        halo=part.halo[halo],
        halo_counts=np.bincount(np.repeat(ranks, part.halo_counts)[halo], minlength=part.num_parts),
        send_rows=places[part.send_rows[sent]].astype(np.int32),
        send_counts=np.bincount(np.repeat(ranks, part.send_counts)[sent], minlength=part.num_parts),
        owned_indptr=owned[0], owned_indices=owned[1], owned_weights=owned[2],
        halo_indptr=remote[0], halo_indices=remote[1], halo_weights=remote[2],
    )  # fmt: skip


def _restricted(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], weights: NDArray[np.float32], rows: Flags, columns: Flags
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Return some rows and columns of a matrix; its entries keep their order, so sums keep their bits."""
    values = weights if len(weights) else np.ones(len(indices), bool)
    matrix = sp.csr_array((values, indices, indptr), shape=(len(rows), len(columns)))
    if not rows.all():
        matrix = matrix[np.flatnonzero(rows)]
    if not columns.all():
        matrix = matrix[:, np.flatnonzero(columns)]
    kept: NDArray[np.float32] = matrix.data if len(weights) else weights
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), kept


def _columns(indptr: NDArray[np.int64], indices: NDArray[np.int32], rows: Flags, num_columns: int) -> Flags:
    """Return which columns have an entry in some rows. (num_columns,)"""
    found = np.zeros(num_columns, bool)
    found[indices[np.repeat(rows, np.diff(indptr))]] = True
    return found
