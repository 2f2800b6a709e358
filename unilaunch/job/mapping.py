"""The host of each rank, as mpirun assigns them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from unilaunch.errors import SpecError
from unilaunch.record import replace
from unilaunch.spec.hostfile import RANKFILE, Host

#: With these values, and by default, Open MPI fills one host after the other.
_FILLING = {None, "slot", "core", "hwthread", "socket", "package", "numa", "l1cache", "l2cache", "l3cache"}
_RANK_LINE = re.compile(r"\s*rank\s+(\d+)\s*=\s*(\S+)\s+slots?\s*=", re.IGNORECASE)
_PER_NODE = re.compile(r"ppr:(\d+):node")


def map_ranks(slots: Mapping[str, int], nprocs: int, map_by: str | None) -> list[str]:
    """Return each rank's host, by rank; "?" for every rank if only mpirun knows it.

    Args:
        slots: Slots by host, in the order of the hosts.
        nprocs: Number of ranks.
        map_by: mpirun's --map-by.

    Raises:
        SpecError: A rankfile cannot be read, or has no line for a rank.
    """
    if (map_by or "").lower().startswith(RANKFILE):
        return _of_rankfile(Path(str(map_by)[len(RANKFILE) :].partition(":")[0]), nprocs)
    policy = map_by.lower() if map_by else None
    if policy and not policy.startswith("ppr:"):
        policy = policy.partition(":")[0] or None
    if match := _PER_NODE.match(policy or ""):
        return _cut([name for name in slots for _ in range(int(match[1]))], nprocs)
    if sum(slots.values()) < nprocs:
        return ["?"] * nprocs
    if policy in _FILLING:
        return _cut([name for name, number in slots.items() for _ in range(number)], nprocs)
    return _cut(_round_robin(slots), nprocs) if policy == "node" else ["?"] * nprocs


def make_room(hosts: Sequence[Host], nprocs: int) -> tuple[Host, ...]:
    """Return the hosts with slots for all ranks; missing slots are added to the hosts in turn, up to each maximum.

    Args:
        hosts: The hosts with their slots.
        nprocs: Number of ranks.
    """
    slots = [host.slots or 0 for host in hosts]
    lacking, open_ = nprocs - sum(slots), True
    while lacking > 0 and open_:
        open_ = False
        for place, host in enumerate(hosts):
            if lacking > 0 and slots[place] < (host.max_slots or nprocs):
                slots[place], lacking, open_ = slots[place] + 1, lacking - 1, True
    return tuple(replace(host, slots=number) for host, number in zip(hosts, slots, strict=True))


def _of_rankfile(path: Path, nprocs: int) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"--map-by {RANKFILE}{path}: cannot be read: {error}") from None
    hosts = {int(found[1]): found[2] for line in lines if (found := _RANK_LINE.match(line))}
    missing = next((rank for rank in range(nprocs) if rank not in hosts), None)
    if missing is not None:
        raise SpecError(f"{path}: no line for rank {missing} of {nprocs}; expected 'rank {missing}=HOST slot=N'")
    return [hosts[rank] for rank in range(nprocs)]


def _round_robin(slots: Mapping[str, int]) -> list[str]:
    rounds = range(max(slots.values()))
    return [name for turn in rounds for name, number in slots.items() if turn < number]


def _cut(names: list[str], nprocs: int) -> list[str]:
    return names[:nprocs] if len(names) >= nprocs else ["?"] * nprocs
