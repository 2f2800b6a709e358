"""Some of a part's nodes at a time, with all their in-edges: what a layer needs to be exact in bounded memory.

A layer that reads each node's in-neighbours gives a node the same row on a block that brings all its in-edges along as
on the whole graph. `Blocks` cuts a part; `network.prediction` applies a network to the blocks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.arrays import Rows
from unilaunch_graph.data.edges import EDGE_IDS, NamedArrays
from unilaunch_graph.data.graph import Features
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.network.part import PartFields
from unilaunch_graph.new_files import map_new_file
from unilaunch_graph.partition.part import Part, lonely_part

Tensor = TypeVar("Tensor")
#: Bytes that a block may take, unless the caller says.
MEMORY = 1 << 30
#: Columns of a halo exchange.
_COLUMNS = 32
#: Edges of which the weights are added up at a time.
_EDGES = 1 << 22
#: The global id of the row that a block without edges has more.
_PADDING = -1


class InWeights(NamedTuple):
    """Sums of the weights of each node's in-edges in the whole graph; an edge without a weight counts 1.

    The last row is that of a padding row.

    Attributes:
        others: From other nodes. (nodes,) float32
        loops: From the node itself. (nodes,) float32
        last: The weight of the last of these loops; NaN: there is none. (nodes,) float32
    """

    others: NDArray[np.float32]
    loops: NDArray[np.float32]
    last: NDArray[np.float32]

    def at(self, nodes: NDArray[np.int64]) -> "InWeights":
        """Return those of some rows."""
        return InWeights(*(one[nodes] for one in self))


@dataclass(frozen=True, eq=False)
class Block(Generic[Tensor]):
    """Some of this rank's nodes, the targets, with all their in-edges, as a small graph of its own.

    *x* has the rows of the targets first, then those of the other sources of these edges. A layer is exact for the
    targets alone: `out[block.targets] = layer(block.x, block.edge_index)[: block.num_targets]`. A block has at least
    one row and one edge: without in-edges it has one row of zeros more, with an edge from itself.

    Attributes:
        targets: Which of this rank's owned nodes the targets are.
        nodes: Global id of each row of *x*; -1: no node. (rows,) int64, an array of numpy
        arrays: The rows and edges as arrays. *owned* is each row's place in the order of the global ids: so the edges
            into a node come in the order that they have in training, and a layer adds in that order.
        weights: The in-edges of each row's node in the whole graph.
        make: Returns the framework's part of a single rank.
    """

    targets: slice
    nodes: NDArray[np.int64]
    arrays: Part
    weights: InWeights
    make: Callable[[Part], PartFields[Tensor, Any, Any]]

    @cached_property
    def part(self) -> PartFields[Tensor, Any, Any]:
        """The block as the part of a single rank, for layers that take a part."""
        return self.make(self.arrays)

    @property
    def num_targets(self) -> int:
        """Number of nodes whose output is wanted."""
        return int(self.targets.stop - self.targets.start)

    @property
    def has_edges(self) -> bool:
        """Whether a target has an in-edge: the block has no padding row then."""
        return bool(self.nodes[-1] != _PADDING)

    @property
    def x(self) -> Tensor:
        """Row of each node of the block, in the framework's default type of floats. (rows, width)"""
        return self.part.x

    @property
    def edge_index(self) -> Tensor:
        """Source and target of each edge, as rows of *x*, sorted by target. (2, edges) int64, in MindSpore int32"""
        return self.part.edge_index

    @property
    def edge_weight(self) -> Tensor | None:
        """Weight of each edge; None: each edge of the graph has 1. (edges,) floats"""
        return self.part.edge_weight

    @property
    def edge_attr(self) -> Tensor | None:
        """Features of each edge; None: the graph has none. (edges, k)"""
        return self.part.edge_attr

    @property
    def edge_type(self) -> Tensor | None:
        """Type of each edge; None: the graph has none. (edges,) integers"""
        return self.part.edge_type

    @property
    def degrees(self) -> NDArray[np.float32]:
        """Sum of the weights of all in-edges of each row's node in the whole graph. (rows,), an array of numpy"""
        degrees: NDArray[np.float32] = self.weights.others + self.weights.loops
        return degrees

    def with_degrees(self) -> "Block[Tensor]":
        """Return the block for a layer that normalises by sums of edge weights, as GCNConv does.

        *edge_weight* is there in any graph. Each row that is no target has its loops, and one edge more, whose weight
        is the sum over its other in-edges: so the layer finds the degrees of the whole graph. The edge's other arrays
        are 0.
        """
        part, (others, loops, last) = self.arrays, self.weights
        remote = self.num_targets + np.flatnonzero(self.nodes[self.num_targets :] != _PADDING)
        if not len(remote):
            return replace(self, arrays=replace(part, owned_weights=_given_weights(part)))
        looped = remote[~np.isnan(last[remote])]
        further = [
            (np.zeros_like(remote), remote, others[remote]),  # from any target, since nobody reads its message
            (looped, looped, loops[looped] - last[looped]),  # the other loops, before the last one
            (looped, looped, last[looped]),
        ]
        target = np.repeat(np.arange(part.num_owned), np.diff(part.owned_indptr))
        ends = [(part.owned_indices, target, _given_weights(part)), *further]
        source, target, weight = (np.concatenate(arrays) for arrays in zip(*ends, strict=True))
        num_further = len(source) - len(part.owned_indices)
        arrays = {
            name: np.concatenate((array, np.zeros((num_further, *array.shape[1:]), array.dtype)))
            for name, array in part.owned_edge_arrays.items()
        }
        graph = graph_of(part.features, (source, target), weight, arrays)
        return replace(self, arrays=replace(graph, owned=part.owned))


def block_size(memory: int, columns: int, width: int = 0) -> int:
    """Return the targets and edges of a block that takes so much memory, with what a layer makes of it.

    Args:
        memory: Bytes.
        columns: Numbers in a row that the layer gets.
        width: Numbers that the layer makes for each row and edge; 0: twice as many as it gets.
    """
    return max(1, memory // (4 * (2 * columns + (width or 2 * columns))))  # rows as arrays and as tensors


class Blocks(Generic[Tensor]):
    """A part that is cut into blocks, once for each layer. All ranks must make this.

    Args:
        part: This rank's part.
        collectives: The ranks' collectives on host arrays.
        make: Returns the framework's part of a single rank.
    """

    def __init__(
        self, part: Part, collectives: Collectives, make: Callable[[Part], PartFields[Tensor, Any, Any]]
    ) -> None:
        self.part, self.make = part, make
        self.halo = HaloExchange(part, collectives)
        num_weights = np.array([len(part.owned_weights) + len(part.halo_weights)], np.float64)
        collectives.all_reduce(num_weights)  # a part without edges has none, also of a graph with weights
        self.is_weighted = bool(num_weights[0])
        own = self._own_weights()
        remote = self.halo.begin(own).wait() if part.num_parts > 1 else own[:0]
        padding = np.array([[0, 1, 1]], np.float32)  # an edge of weight 1 from itself
        self.weights = InWeights(*np.concatenate((own, remote, padding)).T)
        self.ids = np.concatenate((part.owned, part.halo, [_PADDING]))

    def over(self, rows: Features, size: int) -> Iterator[Block[Tensor]]:
        """Send the rows of the halo, and return an iterator over the blocks. All ranks must call this.

        The blocks come in the order of the owned nodes. A part without nodes is one block without targets.

        Args:
            rows: A row for each owned node. (num_owned, columns)
            size: Targets and edges that a block has at most. A node with more in-edges is a block by itself.
        """
        folder = TemporaryDirectory(prefix="unilaunch-")  # it stays until the last block
        remote = self._halo_rows(rows, Path(folder.name) / "halo.npy")
        return self._cut(size, rows, remote, folder)

    def _cut(
        self, size: int, rows: Features, remote: Rows, folder: TemporaryDirectory[str]
    ) -> Iterator[Block[Tensor]]:  # fmt: skip
        with folder:
            for span in _spans(self.part, size):
                yield self._block(span, rows, remote)

    def _block(self, span: slice, rows: Features, remote: Rows) -> Block[Tensor]:
        part = self.part
        source, target, weight, arrays = _in_edges(part, span)
        own = np.arange(span.start, span.stop)
        nodes = np.concatenate((own, np.setdiff1d(source, own)))
        place = np.empty(part.num_owned + part.num_halo, np.int64)
        place[nodes] = np.arange(len(nodes))
        taken, ends = _take(rows, remote, nodes, part.num_owned), (place[source], target)
        if not len(source):
            ends = (np.array([len(nodes)]),) * 2
            nodes, weight = np.append(nodes, _PADDING), np.ones(1, np.float32)
            taken = np.concatenate((taken, np.zeros((1, taken.shape[1]), np.float32)))
            arrays = {name: np.zeros((1, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        graph, ids = graph_of(taken, ends, weight if self.is_weighted else weight[:0], arrays), self.ids[nodes]
        owned = np.empty_like(ids)
        owned[np.argsort(ids)] = np.arange(len(ids))
        return Block(span, ids, replace(graph, owned=owned), self.weights.at(nodes), self.make)

    def _halo_rows(self, rows: Features, file: Path) -> Rows:
        """Return the halo's rows, mapped from a file; a few columns travel at a time."""
        width = rows.shape[1]
        remote = map_new_file(file, np.dtype(np.float32), (self.part.num_halo, width))
        columns = rows.tocsc() if isinstance(rows, sp.csr_array) else rows
        for begin in range(0, width, _COLUMNS) if self.part.num_parts > 1 else ():
            block: Any = columns[:, begin : begin + _COLUMNS]
            dense = block.toarray() if isinstance(columns, sp.csc_array) else block
            remote[:, begin : begin + _COLUMNS] = self.halo.begin(np.ascontiguousarray(dense, np.float32)).wait()
        return remote

    def _own_weights(self) -> NDArray[np.float32]:
        """Return `InWeights` of the owned nodes as columns. (num_owned, 3)"""
        sums = np.zeros((self.part.num_owned, 3), np.float32)
        sums[:, 2] = np.nan
        for span in _spans(self.part, _EDGES):
            source, target, weight, arrays = _in_edges(self.part, span)
            is_loop, size = source == target + span.start, span.stop - span.start
            for column, chosen in enumerate((~is_loop, is_loop)):
                sums[span, column] = np.bincount(target[chosen], weight[chosen], size)
            loops = np.flatnonzero(is_loop)
            if EDGE_IDS in arrays:
                loops = loops[np.argsort(arrays[EDGE_IDS][loops])]
            sums[target[loops] + span.start, 2] = weight[loops]  # of several the last one stays
        return sums


def _spans(part: Part, size: int) -> Iterator[slice]:
    """Yield the owned nodes in spans of at most *size* nodes and in-edges together, or of one node with more."""
    ends = np.asarray(part.owned_indptr) + np.asarray(part.halo_indptr) + np.arange(part.num_owned + 1)
    begin = 0
    while begin < part.num_owned or not part.num_owned:
        end = max(int(np.searchsorted(ends, ends[begin] + size, side="right")) - 1, begin + 1)
        yield slice(begin, min(end, part.num_owned))
        if end >= part.num_owned:
            return
        begin = end


def _in_edges(
    part: Part, span: slice
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NamedArrays]:  # fmt: skip
    """Return the source row, the target's place in the span, the weight and the arrays of each in-edge of a span."""
    sources, targets, weights, spans = [], [], [], []
    for name, shift in (("owned", 0), ("halo", part.num_owned)):
        indptr = getattr(part, f"{name}_indptr")[span.start : span.stop + 1]
        chosen = slice(int(indptr[0]), int(indptr[-1]))
        sources.append(getattr(part, f"{name}_indices")[chosen].astype(np.int64) + shift)
        targets.append(np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)))
        weight = getattr(part, f"{name}_weights")[chosen]
        weights.append(weight if len(weight) else np.ones(len(sources[-1]), np.float32))
        spans.append(chosen)
    arrays = {
        name: np.concatenate((array[spans[0]], part.halo_edge_arrays[name][spans[1]]))
        for name, array in part.owned_edge_arrays.items()
    }
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(weights), arrays


def graph_of(
    rows: Rows, ends: tuple[NDArray[Any], NDArray[Any]], weights: NDArray[np.float32], arrays: NamedArrays
) -> Part:  # fmt: skip
    """Return rows and edges (source, target) as the part of a single rank; edges into a node keep their order."""
    source, target = ends
    order = np.argsort(target, kind="stable")
    indptr = np.concatenate(([0], np.cumsum(np.bincount(target, minlength=len(rows)))))
    return lonely_part(
        rows, indptr, source[order].astype(np.int32), weights[order] if len(weights) else weights,
        {name: array[order] for name, array in arrays.items()},
    )  # fmt: skip


def _given_weights(part: Part) -> NDArray[np.float32]:
    return part.owned_weights if len(part.owned_weights) else np.ones(len(part.owned_indices), np.float32)


def _take(rows: Features, remote: Rows, nodes: NDArray[np.int64], num_owned: int) -> Rows:
    is_owned = nodes < num_owned
    taken = np.empty((len(nodes), rows.shape[1]), np.float32)
    own = rows[nodes[is_owned]]
    taken[is_owned] = own.toarray() if isinstance(own, sp.csr_array) else own
    taken[~is_owned] = remote[nodes[~is_owned] - num_owned]
    return taken
