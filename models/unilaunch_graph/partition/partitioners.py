"""Who owns each node: `assign` asks a partitioner, METIS unless another is named.

A partitioner is an entry point of the group "unilaunch.partitioners". METIS runs in this process. Any other one may
take minutes, or never end, so it runs in a process of its own, which is ended when its time is over.
"""

import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.agent.processes import die_with
from unilaunch.errors import InputError, PluginError
from unilaunch.interfaces import plugins
from unilaunch_graph.data.edges import edge_matrix, symmetric
from unilaunch_graph.data.graph import NONE, TRAIN, Graph
from unilaunch_graph.partition.statistics import halo_size

_GROUP = plugins.Group("unilaunch.partitioners", "partitioner")
#: Seconds that a partitioner other than METIS may take.
PATIENCE = 600
#: By how much a part may be heavier than the mean. METIS's own limit for a k-way partition.
_IMBALANCE = 0.03
#: METIS_OBJTYPE_VOL: total communication volume; only for k-way partitioning.
_VOLUME = 1
#: Edges times parts up to which METIS also makes partitions for the volume: five, or one, which takes about 0.17 s for
#: each million.
_SMALL, _LARGE = 4_000_000, 20_000_000
#: Edges above which METIS makes no partition for the volume: that run would take the most time.
_MOST_EDGES = 2_000_000
#: Directed edges from which on METIS sees some edges of each node for the cut, if it has more. On 78 million it took a
#: tenth of the time, and cut as few of the whole graph's edges (12.9 % of them, to 0.1 points).
MANY = 1_000_000
_SEEN = 16
#: The largest number that METIS holds: its numbers have 32 bits.
MOST = 2**31 - 1
#: Mt-KaHyPar's V-cycles, which improve the whole partition. The first three lower the halo by 0.8 % on average.
_CYCLES = 3


class Partitioner(ABC):
    """A partitioner: an entry point of the group "unilaunch.partitioners".

    Attributes:
        package: The package of the partitioner; only `cut` imports it.
    """

    package: str

    @abstractmethod
    def cut(self, graph: Graph, num_parts: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the part of each node, in (num_nodes,) int64; the same graph must give the same parts.

        Args:
            graph: The structure of the graph: symmetric, without features, labels and weights.
            num_parts: Number of parts: at least 2, and fewer than nodes.
            weights: Weight of each node; the parts should have equal weights. (num_nodes,) int64
        """

    @property
    def label(self) -> str:
        """Name and version, as written in a manifest."""
        return f"{self.package} {version(self.package)}"


class Assignment(NamedTuple):
    """The owner of each node.

    Attributes:
        owner: The part of each node. (num_nodes,) int64
        partitioner: Name and version of the package that made the assignment; "none" if no partitioner was needed.
        halo: Halo nodes of all parts.
    """

    owner: NDArray[np.int64]
    partitioner: str
    halo: int


def load_partitioner(name: str) -> Partitioner:
    """Return the partitioner *name*; "auto" is METIS.

    Raises:
        PluginError: There is no such partitioner, or its package is not installed.
    """
    name = "metis" if name == "auto" else name
    found: Partitioner = plugins.make(_GROUP, name)
    if find_spec(found.package) is None:
        raise PluginError(f"--partitioner {name} needs {found.package}: pip install 'unilaunch[partition]'")
    return found


def assign(graph: Graph, num_parts: int, balance: str, partitioner: str = "auto") -> Assignment:
    """Return the part that owns each node; the same graph gives the same parts with the same packages.

    Args:
        graph: The graph, symmetric; for a directed graph its `structure()`.
        num_parts: Number of parts; if there are more parts than nodes, some are empty, otherwise none is.
        balance: What is balanced over the parts: "nodes", "edges" or "train" (training nodes).
        partitioner: The partitioner that cuts; "auto": METIS.

    Raises:
        PluginError: *partitioner* is unknown or not installed, gives nodes parts that there are not, fails, or takes
            more than `PATIENCE` seconds. METIS has no bound of time.
        InputError: METIS cannot count the nodes.
    """
    chosen = load_partitioner(partitioner)
    if num_parts == 1:
        return Assignment(np.zeros(graph.num_nodes, np.int64), "none", 0)
    if num_parts >= graph.num_nodes:
        return Assignment(np.arange(graph.num_nodes, dtype=np.int64), "none", len(graph.indices))
    weights = _weights(graph, balance)
    if isinstance(chosen, Metis):
        owner = chosen.cut(graph, num_parts, weights)
    else:
        owner = _cut_aside(partitioner, chosen.label, graph, num_parts, weights)
    if owner.shape != graph.degrees.shape or not 0 <= owner.min() <= owner.max() < num_parts:
        raise PluginError(
            f"{chosen.label}: it must give each of {graph.num_nodes:,} nodes a part from 0 to {num_parts - 1}"
        )
    owner = _fill_empty(owner, num_parts)
    return Assignment(owner, chosen.label, halo_size(graph, owner, num_parts))


def _weights(graph: Graph, balance: str) -> NDArray[np.int64]:
    """Return the weight of each node: at least 1, since METIS would put all nodes without weight into one part."""
    if balance == "edges":
        return np.maximum(graph.degrees, 1)
    if balance == "train":
        trains = graph.split == TRAIN
        return np.where(trains, max(1, graph.num_nodes // max(1, int(trains.sum()))), 1)
    return np.ones(graph.num_nodes, np.int64)


def _fill_empty(owner: NDArray[np.int64], num_parts: int) -> NDArray[np.int64]:
    """Return the owners with half of the largest part's nodes in each part that was empty, one after another.

    METIS leaves parts empty where a part has few nodes: of a tree of 70 nodes in 35 parts 13 were.
    """
    sizes = np.bincount(owner, minlength=num_parts)
    owner = owner.copy()
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        moved = np.flatnonzero(owner == largest)[(sizes[largest] + 1) // 2 :]
        owner[moved] = empty
        sizes[empty], sizes[largest] = len(moved), sizes[largest] - len(moved)
    return owner


def _cut_aside(
    name: str, label: str, graph: Graph, num_parts: int, weights: NDArray[np.int64]
) -> NDArray[np.int64]:  # fmt: skip
    """Return what a partitioner's `cut` returns in a process of its own.

    Raises:
        PluginError: It failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="unilaunch-") as folder:
        given, made = Path(folder, "graph.npz"), Path(folder, "owner.npy")
        np.savez(given, indptr=graph.indptr, indices=graph.indices, weights=weights)
        line = [sys.executable, "-P", "-m", __name__, name, str(num_parts), str(given), str(made), str(os.getpid())]
        try:
            ran = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise PluginError(
                f"{label}: no partition after {PATIENCE} s, which is all that it may take: leave --partitioner out, "
                "METIS is faster, or cut the graph yourself and give --owner FILE"
            ) from None
        if ran.returncode:
            last = (ran.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise PluginError(f"{label}: failed with exit code {ran.returncode}: {last}")
        owner: NDArray[np.int64] = np.load(made)
    return owner


def _serve(name: str, num_parts: str, given: str, made: str, parent: str) -> None:
    """Cut a graph, as the process that `_cut_aside` starts: the kernel kills it when its rank is killed."""
    die_with(int(parent))
    arrays = np.load(given)
    count = len(arrays["indptr"]) - 1
    graph = Graph(
        arrays["indptr"], arrays["indices"], np.zeros((count, 0), np.float32), np.zeros(count, np.int64),
        np.full(count, NONE, np.uint8), 1,
    )  # fmt: skip
    np.save(made, load_partitioner(name).cut(graph, int(num_parts), arrays["weights"]))


class Metis(Partitioner):
    """METIS, run for the least cut, and on a small graph also for the least communication volume (k-way).

    The partition with the smaller halo is used. Of many edges METIS sees some.
    """

    package = "pymetis"

    @override
    def cut(self, graph: Graph, num_parts: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        seen = sketch(graph)
        cut = metis(seen.indptr, seen.indices, num_parts, weights)
        work = len(graph.indices) * num_parts
        if work > _LARGE or len(graph.indices) > min(_MOST_EDGES, MOST):
            return cut
        tries = 5 if work <= _SMALL else 1
        volume = metis(graph.indptr, graph.indices, num_parts, weights, objtype=_VOLUME, ncuts=tries)
        return min(cut, volume, key=lambda owner: halo_size(graph, owner, num_parts))


def metis(
    indptr: NDArray[Any],
    indices: NDArray[np.int32],
    num_parts: int,
    weights: NDArray[np.int64] | None,
    **options: int,
) -> NDArray[np.int64]:
    """Return the part of each node from METIS; the seed is fixed.

    Args:
        indptr: The graph's rows, CSR; at most `MOST` edges.
        indices: Neighbours.
        num_parts: Number of parts.
        weights: Weight of each node; None: 1.
        options: Options of METIS by their names in its manual; without any, it looks for the least cut.
    """
    import pymetis

    adjacency = pymetis.CSRAdjacency(indptr, indices)
    _, owner = pymetis.part_graph(
        num_parts,
        adjacency,
        vweights=None if weights is None else fitting(weights),
        recursive=False if "objtype" in options else None,
        options=pymetis.Options(seed=1, **options),
    )
    return np.asarray(owner, dtype=np.int64)


def fitting(weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return integer weights of at least 1 in nearly the same proportion, whose sum fits METIS's 32-bit numbers."""
    excess = -(-int(weights.sum()) // (MOST - len(weights)))
    return weights if weights.sum() <= MOST else weights // excess + 1


def sketch(graph: Graph, seen: int = _SEEN) -> sp.csr_array:
    """Return the graph for METIS, with at most `MOST` edges: all edges, or some of each node if there are many.

    Args:
        graph: The graph, symmetric.
        seen: Edges that each node shows of its own, if there are more than that on the average.

    Raises:
        InputError: The graph has so many nodes that METIS cannot count two edges of each.
    """
    if len(graph.indices) <= min(MOST, max(MANY, seen * graph.num_nodes)):
        return graph.adjacency()
    seen = min(seen, MOST // (2 * graph.num_nodes))
    if not seen:
        raise InputError(f"METIS counts up to {MOST:,} edges, too few for {graph.num_nodes:,} nodes: give --owner FILE")
    return _thinned(graph, seen)


def _thinned(graph: Graph, seen: int) -> sp.csr_array:
    """Return some edges of each node, evenly spaced among its edges, in both directions: they show its community."""
    nodes = np.flatnonzero(graph.degrees)
    degrees = graph.degrees[nodes]
    ends = np.concatenate([graph.indices[graph.indptr[nodes] + degrees * turn // seen] for turn in range(seen)])
    return symmetric(edge_matrix(np.tile(nodes, seen), ends, graph.num_nodes))[0]


class MtKaHyPar(Partitioner):
    """Mt-KaHyPar (Gottesbueren et al., 2022) on the hypergraph whose nets are each node with its neighbours.

    Its objective km1 is the size of the halo: the sum over all nets of the number of their parts minus 1, that is the
    parts in which the net's node is a halo node. The deterministic preset gives the same parts in every run. It takes
    7 s for a million directed edges times parts of a graph with communities, and minutes for a random graph of a
    million edges.
    """

    package = "mtkahypar"

    @override
    def cut(self, graph: Graph, num_parts: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        import mtkahypar

        mtkahypar.set_seed(1)
        start = _start_mtkahypar()
        context = start.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
        context.set_partitioning_parameters(num_parts, _IMBALANCE, mtkahypar.Objective.KM1)
        context.logging = False
        count = graph.num_nodes
        pins = np.insert(graph.indices, graph.indptr[:-1], np.arange(count))  # each node, then its neighbours
        nets = np.split(pins, graph.indptr[1:-1] + np.arange(1, count))
        hypergraph = start.create_hypergraph(context, count, count, nets, weights, np.ones(count, np.int64))
        parts = hypergraph.partition(context)
        parts.improve_partition(context, _CYCLES)
        return np.asarray(parts.get_partition(), np.int64)


@cache
def _start_mtkahypar() -> Any:
    """Start the library, which must be done once in a process, with one thread."""
    import mtkahypar

    return mtkahypar.initialize(1)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
