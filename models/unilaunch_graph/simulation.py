"""Several ranks on a small graph, one after the other in one thread: for checks that a network is exact on parts.

A rank cannot wait for the others here, so a `Journal` says what they exchange. A first run, in which one rank has all
nodes, writes it. Then each part runs alone: it receives what the journal says, and the journal notes what it sends.
Where the ranks send something else than they have received, that is written into the journal, and they run again. At
the end what is received is what is sent: the numbers are those of ranks that run at one time.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Ids
from unilaunch_graph.comparison import WHERE, NotCheckedError, RowIds, Run, difference, is_close
from unilaunch_graph.data.edges import edges_as_given, loops_and_duplicates
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

NUM_PARTS = 3
#: The fields of a part that have a row for each node, and for each edge.
NODE_FIELDS = ("x", "y", "train_mask", "val_mask", "test_mask")
EDGE_FIELDS = ("edge_weight", "edge_attr", "edge_type")
#: How often the parts run, until they receive what they send.
_ROUNDS = 4
#: Numbers of nodes of the parts: those that are no width of the network. A width could not be told from rows.
_SIZES = (13, 11, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
_EDGES_PER_NODE = 3
#: So many nodes of the real graph are looked at for loops and duplicates.
_LOOKED_AT = 1 << 12
_TRIES = 200
#: Numbers of a small type may differ by so many of its roundings.
ROUNDINGS = 8
#: Floats are varied by up to this share.
_VARIED = 0.1


@dataclass(frozen=True, slots=True)
class SmallGraph:
    """A random graph with the directions, loops and duplicates of a real one. Its last part has no edges.

    Attributes:
        graph: The graph. Edges are numbered by target, then by source.
        owner: The part of each node. (num_nodes,)
    """

    graph: Graph
    owner: Ids

    @classmethod
    def like(cls, real: Part, widths: Collection[int], *, all_have_edges: bool = False) -> "SmallGraph":
        """Return a graph like that of a part.

        Args:
            real: The part.
            widths: Numbers that no number of nodes or edges is.
            all_have_edges: Whether the last part's nodes have edges too.
        """
        num_with_edges = NUM_PARTS if all_have_edges else NUM_PARTS - 1
        sizes = [size for size in _SIZES if size not in widths][:NUM_PARTS]
        for seed in range(_TRIES):
            draw = np.random.default_rng(seed)
            owner = draw.permutation(np.repeat(np.arange(NUM_PARTS), sizes))
            ends = _ends(real, np.flatnonzero(owner < num_with_edges), len(owner), draw)
            lengths = _lengths(*ends, owner)
            if len(set(lengths)) == len(lengths) and not set(lengths) & set(widths):
                break
        edges = edges_as_given(*ends, len(owner))._asdict()
        graph = Graph(
            features=np.zeros((len(owner), 0), np.float32), labels=np.zeros(len(owner), np.int64),
            split=np.full(len(owner), TRAIN, np.uint8), num_classes=real.num_classes, **edges,
        )  # fmt: skip
        return cls(graph, owner)

    def whole(self) -> Part:
        """Return the graph as one part."""
        return next(split_parts(self.graph, order_nodes(self.graph, np.zeros_like(self.owner), 1)))

    def parts(self) -> list[Part]:
        """Return the parts, by rank."""
        return list(split_parts(self.graph, order_nodes(self.graph, self.owner, NUM_PARTS)))


def _ends(real: Part, targets: Ids, count: int, draw: np.random.Generator) -> tuple[Ids, Ids]:
    """Return source and target of each edge into *targets*, of *count* nodes, by target."""
    sources = np.arange(count) if real.is_directed else targets
    source = np.concatenate([targets, draw.choice(sources, _EDGES_PER_NODE * count)])
    target = np.concatenate([np.roll(targets, 1), draw.choice(targets, _EDGES_PER_NODE * count)])
    if not real.is_directed:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    source, target = source[source != target], target[source != target]
    indptr = real.owned_indptr[: _LOOKED_AT + 1]
    are_loops, are_duplicates = loops_and_duplicates(indptr, real.owned_indices[: indptr[-1]])
    with_loops = targets[draw.random(len(targets)) < np.count_nonzero(are_loops) / max(1, len(indptr) - 1)]
    edges = np.unique(np.concatenate([target * count + source, with_loops * (count + 1)]))
    if are_duplicates.any():
        edges = np.sort(np.concatenate([edges, draw.choice(edges, len(edges) // 10)]))
    target, source = np.divmod(edges, count)
    return source, target


def _lengths(source: Ids, target: Ids, owner: Ids) -> list[int]:
    """Return the numbers of nodes and edges by which rows are told: those of the graph and of each part."""
    lengths = [len(owner), len(source)]
    for part in range(NUM_PARTS):
        own, inside = int(np.count_nonzero(owner == part)), source[owner[target] == part]
        num_halo = len(np.unique(inside[owner[inside] != part]))
        lengths += [own, *((num_halo, own + num_halo, len(inside)) if len(inside) else ())]
    return lengths


class RowDraw:
    """Draws rows of the whole small graph from rows of the real one.

    Args:
        small: The small graph.
        widths: Numbers that no mask selects: its rows could not be told from other ones.
    """

    def __init__(self, small: SmallGraph, widths: Collection[int]) -> None:
        self.random = np.random.default_rng(0)
        self.lengths = {"nodes": small.graph.num_nodes, "edges": len(small.graph.indices)}
        self.told = {*widths, *self.lengths.values()}

    def places(self, num_given: int, kind: str) -> Ids:
        """Return which of the given rows stand for the "nodes", or the "edges"."""
        return self.random.integers(0, num_given, self.lengths[kind])

    def varied(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the rows with other floats. A mask selects as many rows as no other one, and about its share."""
        if rows.dtype == bool and rows.ndim == 1:
            free = set(range(1, len(rows))) - self.told
            count = min(free, key=lambda one: abs(one - np.count_nonzero(rows)), default=len(rows) // 2)
            self.told.add(count)
            return self.random.permutation(np.arange(len(rows)) < count)
        if rows.dtype.kind == "f":
            rows = rows * (1 + _VARIED * self.random.random(rows.shape)).astype(rows.dtype)
        return rows


@contextmanager
def process_kept() -> Iterator[None]:
    """Set the generators of Python and numpy back at the end, and the rank that is simulated."""
    states = random.getstate(), np.random.get_state(), SIMULATED.get()  # noqa: NPY002  (the script's own)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        SIMULATED.set(states[2])


class Simulation(ABC):
    """The runs of a network on a small graph: as it was written, on the whole, and as the ranks of three parts.

    Args:
        small: The small graph.
    """

    def __init__(self, small: SmallGraph) -> None:
        self.whole, self.parts = small.whole(), small.parts()
        self.kinds: list[tuple[int, ...]] = []

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """The largest difference, as a share of the largest number; the runs so far decide."""

    @abstractmethod
    def run(self, arrays: Part, rank: int, journal: "Journal | None") -> Run:
        """Run the network on a part, as a rank that exchanges by a journal; without one, as it was written."""

    def explain(self, found: str) -> str:
        """Return a difference of numbers with more words."""
        return found

    def difference(self) -> str:
        """Return where the numbers of parts differ from the whole's, in words; "" if they agree.

        Raises:
            NotCheckedError: The network cannot run on the whole, or not twice with the same numbers; or the parts do
                not come to rest, or their outputs cannot be compared.
        """
        whole = self.run_whole()
        self._refuse_draws(whole)
        journal = self.write_journal()
        try:
            for _ in range(_ROUNDS):
                runs = self.run_parts(journal)
                if is_settled := journal.turn(self.tolerance):
                    break
        except NotCheckedError:
            raise
        except OtherExchangesError as error:
            return f"{WHERE} {error}"
        except Exception as error:  # noqa: BLE001  (of the user's network)
            return ": ".join([f"{WHERE} it raises {line_of(error)}", *getattr(error, "__notes__", [])])
        found = difference(whole, runs, self.tolerance)
        if found:  # two draws of a single number are equal by chance, once in some hundred times
            self._refuse_draws(whole)
        if not found and not is_settled:
            raise NotCheckedError("its parts never receive what they send")
        return self.explain(found) if found else ""

    def _refuse_draws(self, whole: Run) -> None:
        if difference(whole, [self.run_whole()], self.tolerance):
            raise NotCheckedError("it draws random numbers")

    def kinds_of(self, outputs: Sequence[Any], ids: RowIds, journal: "Journal | None") -> list[tuple[int, ...]]:
        """Return the kinds of each output's rows (`RowIds.kinds`), of which a loss is made.

        Raises:
            NotCheckedError: A part has other rows, such as those of a fetch: by chance the whole has as many as nodes.
        """
        if journal is None:
            self.kinds = [ids.kinds(rows) for rows in outputs]
        pairs = zip(outputs, self.kinds, strict=False)
        if any(kinds and ids.of(rows, kinds) is None for rows, kinds in pairs):
            raise NotCheckedError("its outputs have other rows in parts")
        return self.kinds

    def run_whole(self) -> Run:
        """Return the run of the network as it was written."""
        with _not_checked("a small graph"):
            return self.run(self.whole, 0, None)

    def write_journal(self) -> "Journal":
        """Return what a rank exchanges that has all nodes."""
        journal = Journal(self.whole.num_nodes)
        with _not_checked("a small graph as one of several ranks"):
            self.run(self.whole, 0, journal)
        journal.turn(0)
        return journal

    def run_parts(self, journal: "Journal") -> list[Run]:
        """Return the run of each part."""
        return [self.run(arrays, rank, journal) for rank, arrays in enumerate(self.parts)]


@contextmanager
def _not_checked(where: str) -> Iterator[None]:
    """Let an error be the reason why a network is not checked."""
    try:
        yield
    except NotCheckedError:
        raise
    except Exception as error:
        raise NotCheckedError(f"{where}: {line_of(error)}") from error


class OtherExchangesError(RuntimeError):
    """A part exchanges something else than one process does: real ranks would wait for each other forever."""


@dataclass(slots=True)
class _Entry:
    """One exchange of all ranks.

    Attributes:
        kind: What it is, in words.
        received: What the ranks receive.
        sent: What the ranks have sent, put together, since the journal was turned.
    """

    kind: str
    received: NDArray[Any]
    sent: NDArray[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.sent = np.zeros_like(self.received)


def line_of(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class Journal:
    """The exchanges of all ranks, in order. The first run writes it, until `turn`; the next runs read it.

    Args:
        num_nodes: Nodes of the graph.
    """

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self.entries: list[_Entry] = []
        self.flips: list[bool] = []
        self.is_written, self.at, self.asked = False, 0, 0

    def rows(self, kind: str, rows: NDArray[Any], owned: Ids, count: int) -> NDArray[Any]:
        """Send the rows of this rank's nodes, or edges. Return the rows of all of them. (count, ...)"""
        entry = self._next(kind, np.zeros((count, *rows.shape[1:]), rows.dtype))
        entry.sent[owned] = rows
        return self._received(entry)

    def total(self, kind: str, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of all ranks' *numbers*."""
        entry = self._next(kind, np.zeros_like(numbers))
        entry.sent += numbers
        return self._received(entry)

    def of_rank_0(self, numbers: NDArray[Any], rank: int) -> NDArray[Any]:
        """Return rank 0's *numbers*."""
        entry = self._next("a broadcast", np.zeros_like(numbers))
        if rank == 0:
            entry.sent[...] = numbers
        return self._received(entry)

    def agreed(self, *, is_here: bool, tells: bool) -> bool:
        """Return whether a layer is called with flipped edges: what the rank says if its edges tell, or the first run.

        Nothing is exchanged: real ranks whose edges all tell do not ask each other.
        """
        if not self.is_written:
            self.flips.append(is_here)
        first_run = self.flips[self.asked : self.asked + 1]
        self.asked += 1
        return is_here if tells or not first_run else first_run[0]

    def end(self) -> None:
        """Note that a rank's run has ended.

        Raises:
            OtherExchangesError: The rank has made fewer exchanges than the first run.
        """
        if self.at < len(self.entries):
            raise OtherExchangesError(f"it leaves out {self.entries[self.at].kind}, which one process makes")
        self.at, self.asked, self.is_written = 0, 0, True

    def turn(self, tolerance: float) -> bool:
        """Let the next runs receive what has been sent. Return whether that is what was received, but for rounding."""
        is_settled = all(is_close(entry.sent, entry.received, tolerance) for entry in self.entries)
        for entry in self.entries:
            entry.received, entry.sent = entry.sent, np.zeros_like(entry.sent)
        self.at = self.asked = 0
        return is_settled

    def _next(self, kind: str, nothing: NDArray[Any]) -> _Entry:
        if not self.is_written:
            self.entries.append(_Entry(kind, nothing))
        elif self.at == len(self.entries):
            raise OtherExchangesError(f"it makes {kind}, which one process does not")
        entry = self.entries[self.at]
        self.at += 1
        expected, found = (f"{array.dtype} {array.shape}" for array in (entry.received, nothing))
        if (entry.kind, expected) != (kind, found):
            raise OtherExchangesError(f"it makes {kind} of {found}, and one process makes {entry.kind} of {expected}")
        return entry

    def _received(self, entry: _Entry) -> NDArray[Any]:
        return (entry.received if self.is_written else entry.sent).copy()


@dataclass(frozen=True, slots=True)
class JournalRows:
    """The exchange of rows of one rank, as a linear operator on arrays. (num_owned, ...) -> (needed, ...)

    Attributes:
        kind: What it is, in words.
        journal: The journal of all ranks.
        owned: Global ids of the rank's nodes.
        needed: Global ids of the rows that it receives, in any order, as often as it needs them.
        num_edges: The edges of the graph, if the rows are of edges; 0: they are of nodes.
    """

    kind: str
    journal: Journal
    owned: Ids
    needed: Ids
    num_edges: int = 0

    def matmat(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the rows that the rank needs."""
        return self.journal.rows(self.kind, rows, self.owned, self._count)[self.needed]

    def rmatmat(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return for each owned row the sum of the rows that all ranks have for it."""
        sums = np.zeros((self._count, *rows.shape[1:]), rows.dtype)
        np.add.at(sums, self.needed, rows)
        return self.journal.total(f"the transpose of {self.kind}", sums)[self.owned]

    @property
    def _count(self) -> int:
        return self.num_edges or self.journal.num_nodes
