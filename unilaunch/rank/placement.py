"""Which device and how many threads each rank gets: a pure function of what all ranks see."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from unilaunch.backend import Placement
from unilaunch.devices import DEVICES
from unilaunch.errors import PlacementError


class Facts(TypedDict):
    """What one rank sees of its host, told to all others.

    Attributes:
        name: The host's name.
        host: What tells this host from every other: the name and the kernel's boot id.
        folder: The current folder.
        cores: The processors that this rank may run on.
        devices: The visible devices of each kind, as the mask names them.
        monitor: Where the agents are to call, from rank 0 if its agent is to be the monitor.
        start: A random word; rank 0's tells this start from others of the same name.
        placeholders: What those in the output folder's name stand for; rank 0's count.
    """

    name: str
    host: str
    folder: str
    cores: list[int]
    devices: dict[str, list[str]]
    monitor: str
    start: str
    placeholders: dict[str, str]


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What the user asked for.

    Attributes:
        device: "auto" or a kind of device.
        kinds: The kinds that the backend has, best first.
        threads: Threads per rank; None for a fair share of the processors.
    """

    device: str
    kinds: Sequence[str]
    threads: int | None


def place(request: DeviceRequest, facts: Sequence[Facts]) -> list[Placement]:
    """Return what every rank runs on, by rank.

    Raises:
        PlacementError: The backend has no such device, or a host has fewer devices than ranks.
    """
    kind = _choose(request, facts)
    placements = []
    for rank, mine in enumerate(facts):
        local = [other for other, fact in enumerate(facts) if fact["host"] == mine["host"]]
        sharing = sum(bool(set(facts[other]["cores"]) & set(mine["cores"])) for other in local)
        placements.append(
            Placement(
                device=kind,
                index=0 if kind == "cpu" else _index(kind, rank, local, facts),
                threads=request.threads or max(1, len(mine["cores"]) // sharing),
            )
        )
    return placements


def _choose(request: DeviceRequest, facts: Sequence[Facts]) -> str:
    if request.device == "auto":
        on_all = (kind for kind in request.kinds if kind == "cpu" or all(fact["devices"].get(kind) for fact in facts))
        return next(on_all)
    if request.device not in request.kinds:
        raise PlacementError(f"--device {request.device}: this backend runs on {', '.join(request.kinds)}")
    return request.device


def _index(kind: str, rank: int, local: Sequence[int], facts: Sequence[Facts]) -> int:
    """Return the index of *rank*'s device among those it sees; *local* are the ranks on its host."""
    visible = facts[rank]["devices"].get(kind, [])
    taken: set[str] = set()  # by name: a launcher may have given each rank a mask of its own, or one in another order
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
