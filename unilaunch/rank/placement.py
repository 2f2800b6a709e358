"""Assign a device and threads to each rank: a pure function of the facts of all ranks."""

from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

from unilaunch.errors import PlacementError
from unilaunch.interfaces.backend import Backend, Placement
from unilaunch.machine.devices import DEVICES, is_mig

#: How a user takes no device, at the command line or by `init` and `launch` in Python.
_CPU = "--device cpu (device='cpu' in Python)"


class Facts(TypedDict):
    """The facts of one rank about its host, which it sends to all other ranks.

    Attributes:
        name: The host's name.
        host: An identifier of this host: the name and the kernel's boot id.
        folder: The current folder.
        cores: The CPUs that this rank may run on, as a mask: bit N is CPU N.
        quota: How many processors' time its container or cgroup allows; None without a limit.
        threads: The threads that the user has exported for each rank; None if there are none.
        devices: The visible devices of each kind, as the mask names them.
        monitor: Where the agents must connect; set by rank 0, if its agent runs the monitor.
        start: A random word. Rank 0's word distinguishes this start from others of the same name.
        placeholders: Values of the placeholders in the output folder's name; those of rank 0 are used.
    """

    name: str
    host: str
    folder: str
    cores: int
    quota: float | None
    threads: int | None
    devices: dict[str, list[str]]
    monitor: str
    start: str
    placeholders: dict[str, str]


def device_kinds(backends: Sequence[Backend]) -> list[str]:
    """Return the kinds of device that a job with these backends may take, best first."""
    kinds = dict.fromkeys(kind for backend in backends for kind in backend.devices)
    return sorted(kinds, key="cpu".__eq__) or ["cpu"]


def place(device: str, kinds: Sequence[str], threads: int | None, facts: Sequence[Facts]) -> list[Placement]:
    """Return the device and threads of every rank, by rank.

    Args:
        device: "auto" or a kind of device.
        kinds: The kinds of device that the backend has, best first.
        threads: Threads per rank; None for the exported number, or an equal share of the CPUs and of the quota.
        facts: What each rank has told of itself, by rank.

    Raises:
        PlacementError: The backend has no such device, or a host has fewer devices than ranks.
    """
    kind = _choose(device, kinds, facts)
    indices = [0] * len(facts) if kind == "cpu" else _indices(kind, facts)
    sharing, on_host = _count_sharing(facts), Counter(fact["host"] for fact in facts)
    return [
        Placement(
            kind,
            index,
            threads or fact["threads"] or _share(fact, sharing[fact["host"], fact["cores"]], on_host[fact["host"]]),
        )
        for index, fact in zip(indices, facts, strict=True)
    ]


def _share(fact: Facts, sharing: int, on_host: int) -> int:
    """Return a rank's threads: more than its share of the container's quota would be throttled."""
    cores = fact["cores"].bit_count() // sharing
    return max(1, min(cores, int(fact["quota"] // on_host)) if fact["quota"] else cores)


def _count_sharing(facts: Sequence[Facts]) -> dict[tuple[str, int], int]:
    """Return how many ranks of a host may run on some CPU of a mask, by host and mask; most ranks have equal masks."""
    hosts: dict[str, Counter[int]] = {}
    for fact in facts:
        hosts.setdefault(fact["host"], Counter())[fact["cores"]] += 1
    return {
        (host, mask): sum(ranks for other, ranks in masks.items() if other & mask)
        for host, masks in hosts.items()
        for mask in masks
    }


def _choose(device: str, kinds: Sequence[str], facts: Sequence[Facts]) -> str:
    if device != "auto":
        if device not in kinds:
            raise PlacementError(f"--device {device}: this backend runs on {', '.join(kinds)}")
        return device
    seeing = {kind: [bool(fact["devices"].get(kind)) for fact in facts] for kind in kinds if kind != "cpu"}
    on_all = [kind for kind, seen in seeing.items() if all(seen)]
    on_some = [kind for kind, seen in seeing.items() if any(seen)]
    if on_some and not on_all:  # on CPU the job would be slow, and nobody would know why
        rank = seeing[on_some[0]].index(False)
        raise _no_device(on_some[0], rank, facts[rank], 0)
    return on_all[0] if on_all else "cpu"


def _indices(kind: str, facts: Sequence[Facts]) -> list[int]:
    """Return the index of each rank's device among the devices visible to it: the first that is free.

    Ranks that see few devices choose first, then lower ranks: a rank that sees more does not take their only one.
    """
    on_host = Counter(fact["host"] for fact in facts)
    taken: set[tuple[str, str]] = set()  # by name: each rank may have another mask, or its devices in another order
    indices = [0] * len(facts)
    for rank in sorted(range(len(facts)), key=lambda rank: len(facts[rank]["devices"].get(kind, []))):
        fact = facts[rank]
        host, visible = fact["host"], fact["devices"].get(kind, [])
        free = next((name for name in visible if (host, name) not in taken), None)
        if free is None:
            raise _no_device(kind, rank, fact, on_host[host])
        taken.add((host, free))
        indices[rank] = visible.index(free)
    return indices


def _no_device(kind: str, rank: int, fact: Facts, on_host: int) -> PlacementError:
    visible = fact["devices"].get(kind, [])
    if not visible:
        return PlacementError(
            f"rank {rank} on {fact['name']}: no {kind} device is visible there: check the driver and "
            f"{DEVICES[kind][0]}, or take {_CPU}"
        )
    shared = "NCCL connects no ranks that share a GPU: " if is_mig(visible[0]) else ""
    return PlacementError(
        f"rank {rank} on {fact['name']} has no {kind} device of its own: {on_host} ranks on this host see "
        f"{len(visible)} ({DEVICES[kind][0]}={','.join(visible)}); {shared}start at most {len(visible)} there, or "
        f"take {_CPU}"
    )
