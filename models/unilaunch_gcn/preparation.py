"""From a data set's name to a partition on disk: the fitting one that is there, or a new one."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from unilaunch.model import Session
from unilaunch.output.log import Log
from unilaunch_gcn.datasets import data_folder, open_dataset
from unilaunch_gcn.part_store import fingerprint, load_part, part_dir, write_parts
from unilaunch_gcn.partition import Part, assign, halo_size, order_nodes, split_parts
from unilaunch_gcn.spec import PartitionSpec


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition on disk.

    Attributes:
        folder: Where it is.
        fingerprint: What it is made from.
    """

    folder: Path
    fingerprint: str


def prepare(options: PartitionSpec, num_parts: int, log: Log) -> Partition:
    """Return the partition that *options* describe; make it when it is not there.

    Raises:
        InputError: The data set is unknown or damaged, or a folder cannot be written.
    """
    dataset = open_dataset(
        options.dataset, options.data_dir, options.mirror, options.split_seed, options.normalize_features
    )
    print_ = fingerprint({**dataset.identity, "num_parts": num_parts, "balance": options.balance})
    root = options.partition_dir or data_folder(options.data_dir) / "partitions"
    folder = root / f"{Path(dataset.name).stem}-{num_parts}-{print_[:12]}"
    if part_dir(folder, num_parts - 1).exists():
        log.say(f"partition: {folder}")
        return Partition(folder, print_)
    begin = time.perf_counter()
    log.say(f"reading {dataset.name}")
    graph = dataset.load()
    log.say(f"{dataset.name}: {graph.num_nodes:,} nodes, {len(graph.indices) // 2:,} edges")
    log.say(f"cutting it into {num_parts} parts")
    owner = assign(graph, num_parts, options.balance)
    halo = halo_size(graph, owner, num_parts)
    write_parts(folder, dataset.name, print_, split_parts(graph, order_nodes(graph, owner, num_parts)))
    seconds = time.perf_counter() - begin
    share = halo / graph.num_nodes
    log.say(f"partition: {num_parts} parts, halo {halo:,} ({share:.1%} of the nodes), {seconds:.1f} s: {folder}")
    return Partition(folder, print_)


def prepare_part(options: PartitionSpec, session: Session) -> Part:
    """Return this rank's part: rank 0 finds or makes the partition, the others wait. All ranks must call it.

    Raises:
        RefusedTogetherError: What one rank must refuse, every rank refuses.
    """
    world = session.world
    place: JsonValue = None
    with session.together("partition"):
        if world.rank == 0:
            partition = prepare(options, world.size, session.log)
            place = [str(partition.folder.absolute()), partition.fingerprint]
    folder, print_ = cast("tuple[str, str]", session.peers.share(place)[0])
    with session.together("load part"):
        return load_part(Path(folder), world.rank, world.size, print_)
    raise AssertionError  # together() has raised
