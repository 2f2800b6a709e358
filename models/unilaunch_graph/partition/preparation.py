"""From the options to this rank's part.

1. `describe_graph` finds the data set that the options name, and `read_dataset` reads its graph.
2. `prepare` looks for the partition on disk. It reads and divides the graph only where there is none.
3. `prepare_part` is called by all ranks: rank 0 prepares the partition, and each rank reads its part.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError, RefusedTogetherError, SpecError
from unilaunch.folder.log import Log as RunLog
from unilaunch.interfaces.agreement import together
from unilaunch.interfaces.backend import Peers
from unilaunch.interfaces.model import Session
from unilaunch.interfaces.world import World
from unilaunch.json_value import JsonValue
from unilaunch_graph.data.dataset import Dataset
from unilaunch_graph.data.diffusion import Diffusion, diffuse
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.data.sources import data_folder, open_dataset
from unilaunch_graph.partition.cut import order_nodes, slice_nodes, split_parts
from unilaunch_graph.partition.part import Adjacency, Part
from unilaunch_graph.partition.partitioners import PATIENCE, Assignment, assign, load_partitioner
from unilaunch_graph.partition.statistics import halo_size
from unilaunch_graph.partition.store import (
    Origin,
    Partition,
    PartReader,
    find_cut,
    fingerprint_of,
    hash_array,
    hash_edges,
    is_visible,
    part_dir,
    write_nodes,
    write_parts,
)

if TYPE_CHECKING:
    from unilaunch_graph.spec import DataSpec

#: Raises a UnilaunchError for a graph, or for a rank's part of it, that cannot be used.
GraphCheck = Callable[[Graph | Part], None]
#: The part of each node, by the user. (num_nodes,)
Owner = NDArray[np.int64]


#: Directed edges from which on METIS takes more than some seconds.
MANY_EDGES = 3_000_000
_logger = logging.getLogger("unilaunch_graph")


class ScriptLog:
    """The log of a script that loads a graph: Python's `logging`, logger "unilaunch_graph", level INFO."""

    def say(self, message: str, /) -> None:
        """Log *message*."""
        _logger.info(message)

    def say_anyway(self, message: str, /) -> None:
        """Log *message*, and where nobody sees that level, write it to standard error."""
        if _logger.isEnabledFor(logging.INFO) and _logger.hasHandlers():
            self.say(message)
        else:
            sys.stderr.write(f"unilaunch_graph: {message}\n")
            sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class ScriptSession:
    """One of the ranks of a script that loads a graph.

    Attributes:
        world: The identity of this rank.
        peers: Small messages between the ranks.
        log: This rank's log.
    """

    world: World
    peers: Peers
    log: ScriptLog

    def together(self, phase: str) -> AbstractContextManager[None]:
        """Run the block on all ranks; if one rank raises a UnilaunchError, every rank raises it."""
        _logger.debug(phase)
        return together(self.peers)


#: What reports the progress of a preparation: of a run, or of a script.
Log: TypeAlias = RunLog | ScriptLog


class DescribedGraph(NamedTuple):
    """The graph that options describe; it is not read yet.

    Attributes:
        dataset: Where it comes from.
        diffusion: What its edges become; None: they stay.
        as_given: Directions, loops, duplicates and arrays of the edges stay. False: each edge is kept once in both
            directions.
    """

    dataset: Dataset
    diffusion: Diffusion | None
    as_given: bool

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the graph; JSON values."""
        form = {"edges": "as given"} if self.as_given and not self.dataset.is_symmetric else {}
        return {**self.dataset.identity, **form, **({"gdc": asdict(self.diffusion)} if self.diffusion else {})}


def describe_graph(options: "DataSpec", log: Log, *, as_given: bool) -> DescribedGraph:
    """Return the graph that *options* describe.

    Args:
        options: The graph.
        log: Logs the progress.
        as_given: As in `DescribedGraph`: for a user's network, for gat and for sage. The GCN's A_hat needs symmetry.

    Raises:
        InputError: There is no such data set.
        SpecError: *as_given* with `use_gdc`.
    """
    if as_given and options.use_gdc:
        raise SpecError("use_gdc: a diffused graph is for the model gcn: edges as they are given need use_gdc=False")
    dataset = _open(options)
    if dataset.is_normalised and options.normalize_features is None:
        log.say(
            f"{dataset.name}: each node's features are divided by their sum, as in the GCN paper; "
            "--no-normalize-features, or normalize_features=False of ug.load, leaves them as they are"
        )
    diffusion = Diffusion(options.gdc_alpha, options.gdc_top_k, options.gdc_threshold) if options.use_gdc else None
    return DescribedGraph(dataset, diffusion, as_given)


def _open(options: "DataSpec") -> Dataset:
    return open_dataset(
        options.dataset, options.data_dir, options.mirror, options.split_seed, options.normalize_features
    )


def read_dataset(described: DescribedGraph, log: Log) -> Graph:
    """Return the described graph.

    Raises:
        InputError: The data set is damaged, has a negative weight, which A_hat does not allow, or weights of edges that
            are to be diffused.
    """
    dataset, diffusion, as_given = described
    log.say(f"reading {dataset.name}")
    graph = dataset.load()
    if not as_given:
        graph = _symmetrised(graph, dataset.name, log)
    edges = f"{len(graph.indices):,} directed" if graph.is_directed else f"{len(graph.indices) // 2:,}"
    log.say(f"{dataset.name}: {graph.num_nodes:,} nodes, {edges} edges")
    if diffusion:
        if graph.weights is not None:
            raise InputError(
                f"{dataset.name}: --use-gdc diffuses a graph whose edges have no weights, and these have: leave "
                "--use-gdc out, or edge_weight"
            )
        log.say("diffusing it")
        graph = diffuse(graph, diffusion)
        log.say(f"diffused: {len(graph.indices) // 2:,} edges")
    return graph


def _symmetrised(graph: Graph, name: str, log: Log) -> Graph:
    try:
        graph, changes = graph.symmetrised()
    except ValueError as error:
        raise InputError(f"{name}: {error}") from error
    for change in changes:
        log.say(f"{name}: {change}")
    return graph


def read_graph(options: "DataSpec", log: Log, *, as_given: bool = False) -> Graph:
    """Return the graph that *options* describe; arguments and errors are those of the two functions above."""
    return read_dataset(describe_graph(options, log, as_given=as_given), log)


class _Divided(NamedTuple):
    said: str
    partitioner: str
    parts: Iterator[Part]
    adjacency: Adjacency | None


class _Division(NamedTuple):
    """How the options divide a graph.

    Attributes:
        options: The options.
        num_parts: Number of parts.
        owner: The part of each node, if the user has decided it.
    """

    options: "DataSpec"
    num_parts: int
    owner: Owner | None

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the cut of given edges; JSON values."""
        options = self.options
        cut: dict[str, Any] = {
            "num_parts": self.num_parts, "balance": options.balance, "parallel": options.parallel
        }  # fmt: skip
        if self.owner is not None:
            return {**cut, "owner": hash_array(self.owner)}
        if options.parallel != "tensor":  # else no partitioner is asked
            cut["partitioner"] = "metis" if options.partitioner == "auto" else options.partitioner
        return cut

    def refuse_unknown_partitioner(self) -> None:
        """Refuse a partitioner that is not there, before any file is read.

        Raises:
            PluginError: It is unknown or not installed.
        """
        if self.options.parallel != "tensor" and self.owner is None:
            load_partitioner(self.options.partitioner)

    def divide(self, graph: Graph, log: Log) -> _Divided:
        """Return the parts of *graph*, which have no rows of the nodes."""
        graph, num_parts, parallel = _without_rows(graph), self.num_parts, self.options.parallel
        if parallel != "tensor":
            structure = graph.structure()
            self._say_begin(structure, log)
            owner, partitioner, halo = self._assign(structure)
            if graph.is_directed:  # then it may have fewer halo nodes than its symmetric structure
                halo = halo_size(graph, owner, num_parts)
            said = f"halo {halo:,} ({halo / graph.num_nodes:.1%} of the nodes)"
            if parallel == "graph" or not sends_less_by_columns(halo, graph.num_nodes, num_parts):
                parts = split_parts(graph, order_nodes(structure, owner, num_parts))
                return _Divided(f"{said} by {partitioner}", partitioner, parts, None)
            log.say(f"{said}: more than the columns' all-to-all: ranks divide columns")
        adjacency, slices = slice_nodes(graph, num_parts)
        return _Divided("by columns", "none", slices, adjacency)

    def _say_begin(self, structure: Graph, log: Log) -> None:
        """Say what is cut before METIS cuts and orders it: METIS holds the interpreter's lock."""
        chosen = "" if self.options.partitioner in {"auto", "metis"} else f" by {self.options.partitioner}"
        how = f"{chosen}, in at most {PATIENCE} s" if chosen else " as owner says" if self.owner is not None else ""
        is_long = bool(chosen) or len(structure.indices) >= MANY_EDGES
        say = log.say_anyway if is_long and isinstance(log, ScriptLog) else log.say
        edges = f"{structure.num_nodes:,} nodes and {len(structure.indices) // 2:,} edges"
        say(f"cutting {edges} into {_parts(self.num_parts)}{how}")

    def _assign(self, structure: Graph) -> Assignment:
        """Return who owns each node: what the user has decided, or a partitioner."""
        owner, num_parts, partitioner = self.owner, self.num_parts, self.options.partitioner
        if owner is not None:
            if len(owner) != structure.num_nodes:
                raise InputError(f"owner: {len(owner):,} numbers, but the graph has {structure.num_nodes:,} nodes")
            return Assignment(owner, "owner", halo_size(structure, owner, num_parts))
        return assign(structure, num_parts, self.options.balance, partitioner)


def _parts(number: int) -> str:
    return f"{number} part{'s' * (number != 1)}"


def _without_rows(graph: Graph) -> Graph:
    """Return the edges and the split only: a cut has no other arrays of the nodes."""
    none = np.zeros((graph.num_nodes, 0), np.float32)
    return replace(graph, features=none, labels=np.zeros(graph.num_nodes, np.int64), node_arrays={})


def sends_less_by_columns(halo: int, num_nodes: int, num_parts: int) -> bool:
    """Return whether two all-to-alls move fewer rows than one halo exchange, over all ranks."""
    return halo > 2 * num_nodes * (num_parts - 1) / num_parts


def _read_owner(path: Path, num_parts: int) -> Owner:
    """Return the part of each node from a user's file: an .npy file, or text with a number in each line, as of gpmetis.

    Raises:
        InputError: The file cannot be read, or does not name each of the ranks.
    """
    try:
        path = path.expanduser()
        given = np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, np.int64, ndmin=1)
    except (OSError, ValueError, EOFError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(f"owner {path}: cannot be read: {reason}: expected a rank for each node") from None
    if not isinstance(given, np.ndarray):
        raise InputError(f"owner {path}: holds several arrays: expected one")
    if given.dtype.kind not in "iu" or given.ndim != 1:
        raise InputError(
            f"owner: expected a rank for each node, whole numbers (num_nodes,), not {given.dtype} {given.shape}"
        )
    owner = given.astype(np.int64)
    lowest, highest = int(owner.min(initial=0)), int(owner.max(initial=0))
    if not 0 <= lowest <= highest < num_parts or not np.bincount(owner, minlength=num_parts).all():
        raise InputError(
            f"owner: names {len(np.unique(owner))} parts, {lowest} to {highest}, but there are {num_parts} ranks: each "
            f"of 0 to {num_parts - 1} must own a node"
        )
    return owner


def prepare(
    options: "DataSpec", num_parts: int, log: Log, *, as_given: bool = False, check: GraphCheck | None = None
) -> Partition:  # fmt: skip
    """Return the partition that *options* describe; make it if it does not exist.

    Where only labels, split or features are new, the cut of the same edges is used.

    Args:
        options: The graph, and how it is divided.
        num_parts: Number of parts.
        log: Logs the progress.
        as_given: As in `describe_graph`.
        check: Called with the graph before it is divided, if it is read.

    Raises:
        InputError: The data set is unknown or damaged, the user's owners of the nodes do not fit, or a folder cannot be
            written.
        SpecError: *as_given* with `use_gdc`.
        PluginError: The partitioner is unknown or not installed, and the partition does not exist.
    """
    described = describe_graph(options, log, as_given=as_given)
    dataset = described.dataset
    division = _Division(options, num_parts, _read_owner(options.owner, num_parts) if options.owner else None)
    data_hash, root = fingerprint_of({**described.identity, **division.identity}), _root(options)
    if folder := _find(root, num_parts, data_hash, dataset.folder):
        log.say(f"partition: {folder}")
        return Partition(folder, data_hash, dataset.folder, dataset.sha256)
    division.refuse_unknown_partitioner()
    begin, name = time.perf_counter(), Path(dataset.name).stem
    graph = read_dataset(described, log)
    if check:
        check(graph)
    edges_hash = hash_edges(graph)
    balanced = {"train": hash_array(graph.split == TRAIN)} if options.balance == "train" else {}
    cut_hash = fingerprint_of({"of": edges_hash, **division.identity, **balanced})
    origin = Origin(dataset.name, edges_hash, cut_hash, data_hash, "none", dataset.folder)
    folder = next(root.glob(f"*-{num_parts}-{cut_hash[:12]}"), root / f"{name}-{num_parts}-{cut_hash[:12]}")
    said = "the cut of the same edges"
    if not folder.exists():
        divided = division.divide(graph, log)
        write_parts(folder, replace(origin, partitioner=divided.partitioner), divided.parts, divided.adjacency)
        said = divided.said
    _refuse_incomplete(folder, num_parts)
    if _open(options).identity != dataset.identity:  # else the hash of the old content would name the new one
        raise InputError(f"{dataset.name}: was changed while it was read: start again")
    write_nodes(folder, origin, graph, root / f"{name}-nodes", log.say)
    log.say(f"partition: {_parts(num_parts)}, {said}, {time.perf_counter() - begin:.1f} s: {folder}")
    return Partition(folder, data_hash, dataset.folder, dataset.sha256)


def _root(options: "DataSpec") -> Path:
    try:
        return (options.partition_dir or data_folder(options.data_dir) / "partitions").expanduser()
    except RuntimeError as error:  # the home of nobody
        raise InputError(
            f"{options.partition_dir}: cannot be read: {str(error).rstrip('.')}: choose another --partition-dir"
        ) from None


def _find(root: Path, num_parts: int, data_hash: str, home: Path | None) -> Path | None:
    """Return the folder of the cut if it is there, whole, with this data set.

    Raises:
        InputError: A part is missing, or the folder may not be entered.
    """
    try:
        folder = find_cut(root, num_parts, data_hash, home) if root.exists() else None
    except OSError as error:
        raise InputError(f"{root}: cannot be read: {error.strerror}: choose another --partition-dir") from None
    if folder:
        _refuse_incomplete(folder, num_parts)
    return folder


def _refuse_incomplete(folder: Path, num_parts: int) -> None:
    if not part_dir(folder, num_parts - 1).exists():
        raise InputError(f"{folder}: incomplete, part.{num_parts - 1} is missing: delete it, it is made again")


def prepare_part(
    options: "DataSpec", session: Session | ScriptSession, *, as_given: bool = False, check: GraphCheck | None = None
) -> Part:  # fmt: skip
    """Return this rank's part. All ranks must call it.

    Rank 0 finds or makes the partition, and the other ranks wait. On a host that cannot read it (without a shared file
    system) the first rank makes it again; the ranks check that the result is the same.

    Args:
        options: The graph, and how it is divided.
        session: This rank.
        as_given: As in `describe_graph`.
        check: Called with the graph before it is divided, and with the part.

    Raises:
        RefusedTogetherError: On every rank, with the error of one rank.
    """
    world = session.world
    made = None
    with session.together("partition"):
        if world.rank == 0:
            made = prepare(options, world.size, session.log, as_given=as_given, check=check)
    partition = _from_json(session.peers.share(_to_json(made))[0])
    partition = _on_this_host(partition, options, session, as_given=as_given)
    with session.together("load part"):
        reader = PartReader.open(partition, world.rank, world.size, checks_shared=world.local_rank == 0)
    for _ in range(reader.steps):
        with together(session.peers):
            reader.step()
    with together(session.peers):
        part = reader.part()
        if check:
            check(part)
    _check_fit(part, session)
    return replace(part, data_sha256=partition.data_sha256)


def _to_json(partition: Partition | None) -> JsonValue:
    if partition is None:
        return None
    home = str(partition.home) if partition.home else None
    return [str(partition.folder.absolute()), partition.fingerprint, home, partition.data_sha256]


def _from_json(values: JsonValue) -> Partition:
    folder, fingerprint, home, data_sha256 = cast("tuple[str, str, str | None, str]", values)
    return Partition(Path(folder), fingerprint, Path(home) if home else None, data_sha256)


def _on_this_host(
    partition: Partition, options: "DataSpec", session: Session | ScriptSession, *, as_given: bool
) -> Partition:
    """Return the partition as this host finds it; make it if the host does not see rank 0's folders."""
    world = session.world
    with together(session.peers):
        blind = not is_visible(partition, world.rank)
    answers = cast("list[list[int]]", session.peers.share([world.node_rank, int(blind)]))
    hosts = {node for node, missing in answers if missing}
    if not hosts:
        return partition
    made = partition
    with session.together("partition of this host"):
        if world.node_rank in hosts and world.local_rank == 0:
            session.log.say(f"{world.host} does not see {partition.folder}, or its data: making the partition here too")
            made = prepare(options, world.size, session.log, as_given=as_given)
            if made.fingerprint != partition.fingerprint:
                raise InputError(f"{world.host}: the data set there is another than on rank 0's host: copy it over")
    places = cast("list[list[Any]]", session.peers.share([world.node_rank, world.local_rank, _to_json(made)]))
    return next(_from_json(values) for node, local, values in places if node == world.node_rank and local == 0)


def _check_fit(part: Part, session: Session | ScriptSession) -> None:
    """Raise an error for parts of different partitions: the rows that one rank sends must be the other's halo rows.

    Raises:
        RefusedTogetherError: The parts do not fit.
    """
    sent = _checksums(part.owned[part.send_rows], part.send_counts)
    awaited = _checksums(part.halo, part.halo_counts)
    answers = cast("list[list[dict[str, int]]]", session.peers.share([dict(sent), dict(awaited)]))
    for rank, (sends, _) in enumerate(answers):
        for other, (_, waits) in enumerate(answers):
            if sends.get(str(other)) != waits.get(str(rank)):
                raise RefusedTogetherError(
                    f"part {rank} and part {other} are of two partitions of one graph (two partitioners, or "
                    "versions of one?): delete the partition's folders, or make it once and copy it to every host",
                    exit_code=InputError.exit_code,
                )


def _checksums(nodes: NDArray[Any], counts: NDArray[Any]) -> dict[str, JsonValue]:
    """Return a checksum of the nodes that are sent to or received from each rank, by rank, without empty ones."""
    ends = np.cumsum(counts)
    return {
        str(rank): crc32(np.ascontiguousarray(nodes[end - count : end], dtype=np.int64).tobytes())
        for rank, (end, count) in enumerate(zip(ends, counts, strict=True))
        if count
    }
