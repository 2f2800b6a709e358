"""Lower the halo of a partition: move single nodes to other parts.

A node and its neighbours are a net of a hypergraph, and these nodes its pins. The halo is the hypergraph's objective
km1: the sum over all nets of the number of parts with a pin, minus 1 (Catalyurek and Aykanat, 1999). A small cut is not
the same: it counts a node's row once for each edge. The moves are a greedy refinement of km1 on the whole graph. First
they also gain something where a net keeps one or two pins in a part that a node leaves: later moves may take these too.
"""

import ctypes
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.data.graph import Graph
from unilaunch_graph.kernels.library import load_library
from unilaunch_graph.partition.statistics import halo_size

_SOURCE = Path(__file__).with_name("refine.c")
#: By how much a part may be heavier than the mean. METIS's own limit for a k-way partition.
IMBALANCE = 0.03
#: Edges up to which numpy makes the moves where there is no compiler: this many take about five seconds.
_MOST_BY_NUMPY = 1 << 20
#: Nodes times parts up to which pins are counted: they take 4 GB.
_MOST_PINS = 1 << 30
#: Pins that numpy looks at at once.
_PIECE = 1 << 22
#: What a pin is worth in a part with no, one, or two others of its net, at first and at the end; with more, nothing.
_WORTHS = (8, 2, 1), (1, 0, 0)


class Refined(NamedTuple):
    """A partition.

    Attributes:
        owner: The part of each node. (num_nodes,) int64
        halo: Halo nodes of all parts.
    """

    owner: NDArray[np.int64]
    halo: int


class State(NamedTuple):
    """A partition while nodes are moved. refine.c has the same fields.

    Attributes:
        indptr: The graph's rows, CSR. (num_nodes + 1,) int64
        indices: Neighbours. (num_edges,) int32
        weights: Of each node: the balanced quantity, and edges. (2, num_nodes) int64
        limits: The most that a part may have of each of the two. (2,) int64
        owner: The part of each node. (num_nodes,) int64
        pins: How many of a node and its neighbours are in each part. (num_nodes, num_parts) int32
        loads: What each part has of the two. (2, num_parts) int64
        worth: What a pin is worth in a part with no, one, or two others of its net. (3,) int32
        is_due: Whether a node is in the queue. (num_nodes,) uint8
        queue: Nodes whose move may gain, in the order in which they became due; a ring. (num_nodes,) int32
        costs: For each part, while a node is looked at. (num_parts,) int32
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.int64]
    limits: NDArray[np.int64]
    owner: NDArray[np.int64]
    pins: NDArray[np.int32]
    loads: NDArray[np.int64]
    worth: NDArray[np.int32]
    is_due: NDArray[np.uint8]
    queue: NDArray[np.int32]
    costs: NDArray[np.int32]


def refine(graph: Graph, owner: NDArray[np.int64], num_parts: int, weights: NDArray[np.int64]) -> Refined:
    """Return the partition after moves of nodes; its halo is not larger.

    A part may get as heavy as the heaviest was, or 3 % heavier than the mean, by the weights and by edges; none becomes
    empty. The same partition gives the same result on every machine, with a compiler and without, but more than a
    million edges are refined only where there is one. More than 2**30 nodes times parts are not refined.

    Args:
        graph: The graph, symmetric.
        owner: The part of each node. (num_nodes,)
        num_parts: Number of parts.
        weights: Weight of each node, at least 1. (num_nodes,) int64
    """
    is_large = len(graph.indices) > _MOST_BY_NUMPY
    library = load_library(_SOURCE, "partitions are not refined" if is_large else None)
    if graph.num_nodes * num_parts > _MOST_PINS or (is_large and library is None):
        return Refined(owner, halo_size(graph, owner, num_parts))
    state = _begin(graph, owner, num_parts, weights)
    moves = _MovesInC(library, state) if library else _Moves(state)
    moves.count_pins()
    before = _halo(state)
    for worth in _WORTHS:
        state.worth[:] = worth
        moves.sweep()
    halo = _halo(state)
    return Refined(state.owner, halo) if halo <= before else Refined(owner, before)


def _begin(graph: Graph, owner: NDArray[np.int64], num_parts: int, weights: NDArray[np.int64]) -> State:
    both = np.stack((weights, graph.degrees)).astype(np.int64)
    loads = np.stack([np.bincount(owner, of, num_parts) for of in both]).astype(np.int64)
    return State(
        indptr=np.ascontiguousarray(graph.indptr, np.int64),
        indices=np.ascontiguousarray(graph.indices, np.int32),
        weights=both,
        limits=np.maximum(loads.max(axis=1), (1 + IMBALANCE) * loads.mean(axis=1)).astype(np.int64),
        owner=owner.astype(np.int64),
        pins=np.zeros((graph.num_nodes, num_parts), np.int32),
        loads=loads,
        worth=np.zeros(len(_WORTHS[0]), np.int32),
        is_due=np.zeros(graph.num_nodes, np.uint8),
        queue=np.zeros(graph.num_nodes, np.int32),
        costs=np.zeros(num_parts, np.int32),
    )


def _halo(state: State) -> int:
    return int(np.count_nonzero(state.pins)) - len(state.pins)


class _StateInC(ctypes.Structure):
    _fields_ = (
        *((size, ctypes.c_int64) for size in ("num_nodes", "num_parts")),
        *((name, ctypes.c_void_p) for name in State._fields),
        *((place, ctypes.c_int64) for place in ("first", "length")),
    )


class _MovesInC:
    """`_Moves`, by refine.c."""

    def __init__(self, library: ctypes.CDLL, state: State) -> None:
        self.arrays = state  # the addresses are theirs
        in_c = _StateInC(*state.pins.shape, *(array.ctypes.data for array in state))
        self.count_pins = partial(library.count_pins, ctypes.byref(in_c))
        self.sweep = partial(library.sweep, ctypes.byref(in_c))


class _Moves:
    """What refine.c does, by numpy, node by node."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.queue: deque[int] = deque()

    def count_pins(self) -> None:
        """Count the pins, which are zero."""
        state = self.state
        num_nodes, num_parts = state.pins.shape
        for nets, rows, nodes in self._pieces():
            counts = np.bincount((rows - nets.start) * num_parts + state.owner[nodes], minlength=len(nets) * num_parts)
            state.pins[nets.start : nets.stop] = counts.reshape(-1, num_parts)
        state.pins[np.arange(num_nodes), state.owner] += 1

    def _pieces(self) -> Iterator[tuple[range, NDArray[np.int64], NDArray[np.int32]]]:
        """Yield some nets, and the net and the node of each pin that is not the net's own node."""
        state, num_nodes = self.state, len(self.state.owner)
        step = max(1, _PIECE * num_nodes // max(1, len(state.indices)))
        for begin in range(0, num_nodes, step):
            nets = range(begin, min(begin + step, num_nodes))
            indptr = state.indptr[nets.start : nets.stop + 1]
            yield nets, np.repeat(nets, np.diff(indptr)), state.indices[indptr[0] : indptr[-1]]

    def sweep(self) -> None:
        """Move nodes, first come, first served, in rounds, until one moves fewer than a thousandth of the nodes."""
        moved = num_nodes = len(self.state.owner)
        while moved and 1000 * moved >= num_nodes:
            moved = 0
            self._find_due()
            while self.queue:
                node = self.queue.popleft()
                self.state.is_due[node] = 0
                moved += self._move(node)

    def _make_due(self, nodes: NDArray[Any]) -> None:
        new = nodes[self.state.is_due[nodes] == 0]
        self.state.is_due[new] = 1
        self.queue.extend(new.tolist())

    def _find_due(self) -> None:
        """Let the nodes be due whose move may gain: those of the few pins that a net has in a part."""
        state = self.state
        is_cut = np.count_nonzero(state.pins, axis=1) > 1
        for nets, rows, nodes in self._pieces():
            pins = np.stack((np.append(rows, nets), np.append(nodes, nets)))  # of a net, its own node comes last
            is_loose = is_cut[pins[0]] & (state.pins[pins[0], state.owner[pins[1]]] <= len(state.worth))
            loose = pins[1, is_loose][np.argsort(pins[0, is_loose], kind="stable")]
            self._make_due(loose[np.sort(np.unique(loose, return_index=True)[1])])

    def _move(self, node: int) -> bool:
        """Move the node to the part to which a move gains most, of equal ones to the lightest, if one is better."""
        state, own = self.state, self.state.owner[node]
        net = np.append(state.indices[state.indptr[node] : state.indptr[node + 1]], node)
        pins, weight = state.pins[net], state.weights[:, node]
        gains = self._worth(pins[:, own] - 1) - self._worth(pins)
        fits = (state.pins[node] > 0) & (state.loads + weight[:, None] <= state.limits[:, None]).all(axis=0)
        fits &= state.loads[0, own] > weight[0]  # else it would leave an empty part
        fits[own] = False
        better = (gains > 0) | ((gains == 0) & (state.loads[0] < state.loads[0, own] - weight[0]))
        choices = np.flatnonzero(fits & better)
        if len(choices):
            self._put(node, net, min(choices, key=lambda part: (-gains[part], state.loads[0, part])))
        return len(choices) > 0

    def _worth(self, others: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return what a pin of each net is worth, added up."""
        worth = np.append(self.state.worth, 0)
        return np.asarray(worth[np.minimum(others, len(self.state.worth))].sum(axis=0))

    def _put(self, node: int, net: NDArray[np.int64], part: int) -> None:
        state, own = self.state, self.state.owner[node]
        state.pins[net, own] -= 1
        state.pins[net, part] += 1
        self._make_due(net)
        state.loads[:, own] -= state.weights[:, node]
        state.loads[:, part] += state.weights[:, node]
        state.owner[node] = part
