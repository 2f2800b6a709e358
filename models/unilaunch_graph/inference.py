"""Inference layer by layer in bounded memory: a layer is applied to blocks of nodes, and its output is a mapped file.

A layer that reads each node's in-neighbours is exact on a block of nodes that brings all their in-edges along. So a
network needs no memory for the graph's activations, and the layers need no information about parts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import SpecError
from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.arrays import Rows
from unilaunch_graph.data.edges import EDGE_IDS, NamedArrays
from unilaunch_graph.data.graph import Features
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import Exact
from unilaunch_graph.new_file import map_new_file
from unilaunch_graph.partition.part import Part

#: Bytes that the rows and the messages of a block may take.
MEMORY = 1 << 30
#: Columns of a halo exchange.
_COLUMNS = 32
_KIND = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Some nodes with all their in-edges, as a small graph of its own.

    Attributes:
        span: Which of the owned nodes these are: the targets.
        nodes: Local rows that are read: the targets first, then the other sources. (num_nodes,) int64
        edge_index: Source and target of each edge, as places in *nodes*, sorted by target. (2, num_edges) int64
        edge_weight: Weight of each edge; None: each edge of the graph has 1. (num_edges,) float32
        edge_arrays: Further arrays of the edges by name, without `EDGE_IDS`. (num_edges, ...)
    """

    span: slice
    nodes: NDArray[np.int64]
    edge_index: NDArray[np.int64]
    edge_weight: NDArray[np.float32] | None
    edge_arrays: NamedArrays

    @property
    def edge_attr(self) -> NDArray[Any] | None:
        """Features of each edge, floats as float32; None without. (num_edges, k)"""
        features = self.edge_arrays.get("edge_attr")
        is_floats = features is not None and features.dtype.kind == "f"
        return features.astype(np.float32, copy=False) if features is not None and is_floats else features

    @property
    def edge_type(self) -> NDArray[np.integer[Any]] | None:
        """Type of each edge; None without. (num_edges,)"""
        return self.edge_arrays.get("edge_type")

    @property
    def num_targets(self) -> int:
        """Number of nodes whose output is wanted."""
        return int(self.span.stop - self.span.start)


#: From the rows of a neighbourhood's nodes to the output of its targets. (num_nodes, w) -> (num_targets, width)
Layer = Callable[[Rows, Neighbourhood], Rows]


def infer(part: Part, collectives: Collectives, layers: Sequence[Layer], folder: Path, memory: int = MEMORY) -> Rows:
    """Return the output of the last layer on the owned nodes, mapped from a file; all ranks must call it.

    Args:
        part: This rank's part.
        collectives: The ranks' collectives on host arrays.
        layers: First to last; each gets float32 rows of the one before, the first one features.
        folder: Where each layer's output is kept while it is needed: room for two layers and their halos.
        memory: Bytes that the rows and the messages of a block may take. A node with more in-edges than that is a
            block by itself.

    Returns:
        (num_owned, width) float32; of a last layer that returns one number for each node (num_owned,).

    Raises:
        SpecError: A layer that is not the last one returns no matrix.
    """
    halo, rows = HaloExchange(part, collectives, Meter(), Exact()), part.features
    num_weights = np.array([len(part.owned_weights) + len(part.halo_weights)], np.float64)
    collectives.all_reduce(num_weights)  # a part without edges has none, also of a graph with weights
    cut = partial(neighbourhoods, part, is_weighted=bool(num_weights[0]))
    for number, layer in enumerate(layers):
        if rows.ndim != 2:  # noqa: PLR2004  (nodes and columns)
            raise SpecError(
                f"predict: a layer returned the shape {rows.shape}, and another one follows: expected (nodes, width)"
            )
        remote = _halo_rows(part, halo, rows, folder / f"halo.{part.index}.npy")
        blocks = cut(max(1, memory // (8 * rows.shape[1])))  # a row and a message for each edge
        rows = _apply(layer, blocks, (rows, remote), folder / f"rows.{part.index}.{number % 2}.npy")
    if isinstance(rows, sp.csr_array):
        raise TypeError("infer: expected one layer or more")
    return rows


def neighbourhoods(part: Part, num_edges: int, *, is_weighted: bool) -> Iterator[Neighbourhood]:
    """Yield the owned nodes in blocks of at most so many in-edges, or of one node with more.

    A part without nodes is one block: only a layer knows how wide its rows are.
    """
    ends = np.asarray(part.owned_indptr) + np.asarray(part.halo_indptr)
    begin = 0
    if not part.num_owned:
        yield _neighbourhood(part, slice(0, 0), is_weighted=is_weighted)
    while begin < part.num_owned:
        end = int(np.searchsorted(ends, ends[begin] + num_edges, side="right")) - 1
        end = min(max(end, begin + 1), part.num_owned, begin + num_edges)
        yield _neighbourhood(part, slice(begin, end), is_weighted=is_weighted)
        begin = end


def _neighbourhood(part: Part, span: slice, *, is_weighted: bool) -> Neighbourhood:
    targets, sources, weights, spans = [], [], [], []
    for name, shift in (("owned", 0), ("halo", part.num_owned)):
        indptr = getattr(part, f"{name}_indptr")[span.start : span.stop + 1]
        chosen = slice(int(indptr[0]), int(indptr[-1]))
        targets.append(np.repeat(np.arange(span.stop - span.start), np.diff(indptr)))
        sources.append(getattr(part, f"{name}_indices")[chosen].astype(np.int64) + shift)
        weights.append(getattr(part, f"{name}_weights")[chosen])
        spans.append(chosen)
    target, source = np.concatenate(targets), np.concatenate(sources)
    order = np.argsort(target, kind="stable")
    place = np.full(part.num_owned + part.num_halo, -1, np.int64)
    place[source] = 0
    place[span] = -1
    nodes = np.concatenate((np.arange(span.start, span.stop), np.flatnonzero(place == 0)))
    place[nodes] = np.arange(len(nodes))
    weight = np.concatenate(weights)
    arrays = {
        name: np.concatenate((array[spans[0]], part.halo_edge_arrays[name][spans[1]]))[order]
        for name, array in part.owned_edge_arrays.items()
        if name != EDGE_IDS
    }
    return Neighbourhood(
        span,
        nodes,
        np.stack((place[source[order]], target[order])),
        weight[order] if is_weighted else None,
        arrays,
    )


def _halo_rows(part: Part, halo: HaloExchange, rows: Features, file: Path) -> Rows:
    """Return the halo's rows, mapped from a file; a few columns travel at a time."""
    width = rows.shape[1]
    remote = map_new_file(file, _KIND, (part.num_halo, width))
    columns = rows.tocsc() if isinstance(rows, sp.csr_array) else rows
    for begin in range(0, width, _COLUMNS) if part.num_parts > 1 else ():
        block: Any = columns[:, begin : begin + _COLUMNS]
        dense = block.toarray() if isinstance(columns, sp.csc_array) else block
        remote[:, begin : begin + _COLUMNS] = halo.begin(np.ascontiguousarray(dense, np.float32)).wait()
    return remote


def _apply(layer: Layer, blocks: Iterable[Neighbourhood], table: tuple[Features, Rows], file: Path) -> Rows:
    """Return the layer's output on the owned nodes, mapped from a file; *table* has the owned and the halo rows."""
    rows, remote = table
    num_owned, out = rows.shape[0], remote
    for block in blocks:
        result = layer(_take(rows, remote, block.nodes, num_owned), block)
        if block.span.start == 0:
            out = map_new_file(file, _KIND, (num_owned, *result.shape[1:]))
        out[block.span] = result
    return out


def _take(rows: Features, remote: Rows, nodes: NDArray[np.int64], num_owned: int) -> Rows:
    is_owned = nodes < num_owned
    taken = np.empty((len(nodes), rows.shape[1]), np.float32)
    own = rows[nodes[is_owned]]
    taken[is_owned] = own.toarray() if isinstance(own, sp.csr_array) else own
    taken[~is_owned] = remote[nodes[~is_owned] - num_owned]
    return taken
