"""Assign a device and threads to each rank: a pure function of the facts of all ranks."""

from collections.abc import Sequence
from typing import TypedDict

from unilaunch.backend import Placement
from unilaunch.devices import DEVICES
from unilaunch.errors import PlacementError


class Facts(TypedDict):
    """The facts of one rank about its host, which it sends to all other ranks.

    Attributes:
        name: The host's name.
        host: An identifier of this host: the name and the kernel's boot id.
        folder: The current folder.
        cores: The CPUs that this rank may run on.
        devices: The visible devices of each kind, as the mask names them.
        monitor: Where the agents must connect; set by rank 0, if its agent runs the monitor.
        start: A random word. Rank 0's word distinguishes this start from others of the same name.
        placeholders: Values of the placeholders in the output folder's name; those of rank 0 are used.
    """

    name: str
    host: str
    folder: str
    cores: list[int]
    devices: dict[str, list[str]]
    monitor: str
    start: str
    placeholders: dict[str, str]


def place(device: str, kinds: Sequence[str], threads: int | None, facts: Sequence[Facts]) -> list[Placement]:
    """Return the device and threads of every rank, by rank.

    Args:
        device: "auto" or a kind of device.
        kinds: The kinds of device that the backend has, best first.
        threads: Threads per rank; None for an equal share of the CPUs.
        facts: What each rank has told of itself, by rank.

    Raises:
        PlacementError: The backend has no such device, or a host has fewer devices than ranks.
    """
    kind = _choose(device, kinds, facts)
    placements = []
    for rank, mine in enumerate(facts):
        local = [other for other, fact in enumerate(facts) if fact["host"] == mine["host"]]
        sharing = sum(bool(set(facts[other]["cores"]) & set(mine["cores"])) for other in local)
        placements.append(
            Placement(
                device=kind,
                index=0 if kind == "cpu" else _index(kind, rank, local, facts),
                threads=threads or max(1, len(mine["cores"]) // sharing),
            )
        )
    return placements


def _choose(device: str, kinds: Sequence[str], facts: Sequence[Facts]) -> str:
    if device == "auto":
        on_all = (kind for kind in kinds if kind == "cpu" or all(fact["devices"].get(kind) for fact in facts))
        return next(on_all)
    if device not in kinds:
        raise PlacementError(f"--device {device}: this backend runs on {', '.join(kinds)}")
    return device


def _index(kind: str, rank: int, local: Sequence[int], facts: Sequence[Facts]) -> int:
    """Return the index of *rank*'s device among the devices visible to it; *local* are the ranks on its host."""
    visible = facts[rank]["devices"].get(kind, [])
    taken: set[str] = set()  # by name: a launcher may give each rank another mask, or the same devices in another order
    for other in local:
        free = [name for name in facts[other]["devices"].get(kind, []) if name not in taken]
        if other == rank and free:
            return visible.index(free[0])
        taken.update(free[:1])
    if not visible:
        raise PlacementError(
            f"rank {rank} on {facts[rank]['name']}: no {kind} device is visible there: check the driver and "
            f"{DEVICES[kind][0]}, or take --device cpu"
        )
    raise PlacementError(
        f"rank {rank} on {facts[rank]['name']} has no {kind} device of its own: {len(local)} ranks on this host see "
        f"{len(visible)} ({DEVICES[kind][0]}={','.join(visible)}); start at most {len(visible)} there, or --device cpu"
    )
