"""Prepare the partition of a data set on disk: use the existing one if it fits, or make it."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError, RefusedTogetherError, SpecError
from unilaunch.interfaces.backend import Peers
from unilaunch.interfaces.world import World
from unilaunch.json_value import JsonValue
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.sources import data_folder
from unilaunch_graph.partition.assign import assign
from unilaunch_graph.partition.cut import slice_nodes, split_parts
from unilaunch_graph.partition.order import order_nodes
from unilaunch_graph.partition.part import Adjacency, Part
from unilaunch_graph.partition.partitioner import refuse_if_missing
from unilaunch_graph.partition.reading import Log, diffusion_of, find_dataset, read_dataset
from unilaunch_graph.partition.statistics import halo_size
from unilaunch_graph.partition.store import Origin, fingerprint_of, load_part, part_dir, write_parts

if TYPE_CHECKING:
    from unilaunch_graph.spec import DataSpec

#: Raises a UnilaunchError for a graph, or for a rank's part of it, that cannot be used.
Check = Callable[[Graph | Part], None]


class Ranks(Protocol):
    """The ranks that prepare a partition together, for instance a `unilaunch.interfaces.model.Session`."""

    @property
    def world(self) -> World:
        """The identity of this rank."""

    @property
    def peers(self) -> Peers:
        """Small messages between the ranks."""

    @property
    def log(self) -> Log:
        """This rank's log."""

    def together(self, phase: str) -> AbstractContextManager[None]:
        """Run the block on all ranks; if one rank raises a UnilaunchError, every rank raises it."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition on disk.

    Attributes:
        folder: Its folder.
        fingerprint: The fingerprint of the data and the options from which it is made.
        data_sha256: SHA-256 of the data set's content, the same for any number of parts.
    """

    folder: Path
    fingerprint: str
    data_sha256: str


def prepare(
    options: "DataSpec", num_parts: int, log: Log, *, as_given: bool = False, check: Check | None = None
) -> Partition:  # fmt: skip
    """Return the partition that *options* describe; make it if it does not exist.

    Args:
        options: The graph, and how it is divided.
        num_parts: Number of parts.
        log: Logs the progress.
        as_given: Keep directions, loops, duplicates and features of the edges, for a user's network, for gat and for
            sage. Otherwise each edge is kept once in both directions, as the GCN's A_hat needs it. A data set that is
            symmetric by its definition (sbm, cora, citeseer, pubmed) has one partition for both.
        check: Called with the graph before it is divided, if it is read.

    Raises:
        InputError: The data set is unknown or damaged, or a folder cannot be written.
        SpecError: *as_given* with `use_gdc`.
        PluginError: The partitioner is unknown or not installed, and the partition does not exist.
    """
    dataset, how = find_dataset(options, log), diffusion_of(options)
    if as_given and options.use_gdc:
        raise SpecError("use_gdc: a diffused graph is for the model gcn: edges as they are given need use_gdc=False")
    cut: dict[str, Any] = {"num_parts": num_parts, "balance": options.balance, "parallel": options.parallel}
    if as_given and not dataset.is_symmetric:
        cut["edges"] = "as given"
    by_nodes = options.parallel != "tensor"  # else no partitioner is asked
    if by_nodes and options.partitioner != "auto":  # "auto" accepts any partition
        cut["partitioner"] = options.partitioner
    fingerprint = fingerprint_of({**dataset.identity, **cut, **({"gdc": asdict(how)} if how else {})})
    root = options.partition_dir or data_folder(options.data_dir) / "partitions"
    folder, is_there = _looked_up(root / f"{Path(dataset.name).stem}-{num_parts}-{fingerprint[:12]}", num_parts)
    if is_there:
        log.say(f"partition: {folder}")
        return Partition(folder, fingerprint, dataset.sha256)
    if by_nodes:
        refuse_if_missing(options.partitioner)
    begin = time.perf_counter()
    graph = read_dataset(dataset, how, log, as_given=as_given)
    if check:
        check(graph)
    divided = _divide(graph, num_parts, options, log)
    origin = Origin(dataset.name, fingerprint, divided.partitioner)
    write_parts(folder, origin, divided.parts, divided.adjacency)
    log.say(f"partition: {_parts(num_parts)}, {divided.said}, {time.perf_counter() - begin:.1f} s: {folder}")
    return Partition(folder, fingerprint, dataset.sha256)


def _looked_up(folder: Path, num_parts: int) -> tuple[Path, bool]:
    """Return the folder without ~, and whether the partition is there: it was renamed when it was whole.

    Raises:
        InputError: A part is missing, the folder may not be entered, or is in the home of nobody.
    """
    try:
        folder = folder.expanduser()
        if not (is_there := folder.exists()) or part_dir(folder, num_parts - 1).exists():
            return folder, is_there
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise InputError(f"{folder}: cannot be read: {reason}: choose another --partition-dir") from None
    raise InputError(f"{folder}: incomplete, part.{num_parts - 1} is missing: delete it, it is made again")


def _parts(number: int) -> str:
    return f"{number} part{'s' * (number != 1)}"


class _Divided(NamedTuple):
    said: str
    partitioner: str
    parts: Iterator[Part]
    adjacency: Adjacency | None


def _divide(graph: Graph, num_parts: int, options: "DataSpec", log: Log) -> _Divided:
    """Divide the graph as *options* request."""
    if options.parallel != "tensor":
        log.say(f"cutting it into {_parts(num_parts)}")
        structure = graph.structure()
        owner, partitioner, halo = assign(structure, num_parts, options.balance, options.partitioner)
        if graph.is_directed:  # then it may have fewer halo nodes than its symmetric structure
            halo = halo_size(graph, owner, num_parts)
        said = f"halo {halo:,} ({halo / graph.num_nodes:.1%} of the nodes)"
        if options.parallel == "graph" or not sends_less_by_columns(halo, graph.num_nodes, num_parts):
            parts = split_parts(graph, order_nodes(structure, owner, num_parts))
            return _Divided(f"{said} by {partitioner}", partitioner, parts, None)
        log.say(f"{said}: more than the columns' all-to-all: ranks divide columns")
    adjacency, slices = slice_nodes(graph, num_parts)
    return _Divided("by columns", "none", slices, adjacency)


def sends_less_by_columns(halo: int, num_nodes: int, num_parts: int) -> bool:
    """Return whether two all-to-alls move fewer rows than one halo exchange, over all ranks."""
    return halo > 2 * num_nodes * (num_parts - 1) / num_parts


def prepare_part(
    options: "DataSpec", session: Ranks, *, as_given: bool = False, check: Check | None = None
) -> Part:  # fmt: skip
    """Return this rank's part. All ranks must call it.

    Rank 0 finds or makes the partition, and the other ranks wait. On a host that cannot read it (without a shared file
    system) the first rank makes it again; the ranks check that the result is the same.

    Args:
        options: The graph, and how it is divided.
        session: This rank.
        as_given: As in `prepare`.
        check: Called with the graph before it is divided, and with the part.

    Raises:
        RefusedTogetherError: On every rank, with the error of one rank.
    """
    world = session.world
    place: JsonValue = None
    with session.together("partition"):
        if world.rank == 0:
            partition = prepare(options, world.size, session.log, as_given=as_given, check=check)
            place = [str(partition.folder.absolute()), partition.fingerprint, partition.data_sha256]
    folder, fingerprint, data_sha256 = cast("tuple[str, str, str]", session.peers.share(place)[0])
    folder = _seen_here(folder, fingerprint, options, session, as_given=as_given)
    with session.together("load part"):
        part = load_part(Path(folder), world.rank, world.size, fingerprint, checks_shared=world.local_rank == 0)
        if check:
            check(part)
    _check_fit(part, session)
    return replace(part, data_sha256=data_sha256)


def _seen_here(folder: str, fingerprint: str, options: "DataSpec", session: Ranks, *, as_given: bool) -> str:
    """Return the partition's folder on this host; make the partition if rank 0's folder is not shared."""
    world = session.world
    blind = not part_dir(Path(folder), world.rank).is_dir()
    answers = cast("list[list[int]]", session.peers.share([world.node_rank, int(blind)]))
    hosts = {node for node, missing in answers if missing}
    if not hosts:
        return folder
    made = folder
    with session.together("partition of this host"):
        if world.node_rank in hosts and world.local_rank == 0:
            session.log.say(f"{world.host} does not see {folder}: making the partition here too")
            partition = prepare(options, world.size, session.log, as_given=as_given)
            made = str(partition.folder.absolute())
            if partition.fingerprint != fingerprint:
                raise InputError(f"{world.host}: the data set there is another than on rank 0's host: copy it over")
    places = cast("list[list[Any]]", session.peers.share([world.node_rank, world.local_rank, made]))
    return next(str(place) for node, local, place in places if node == world.node_rank and local == 0)


def _check_fit(part: Part, session: Ranks) -> None:
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
