"""Which host each rank goes to, as mpirun deals them out."""

import re
from collections.abc import Mapping

#: Open MPI fills one host after the other by default, and when it deals out pieces of a host.
_FILLING = {None, "slot", "core", "hwthread", "socket", "package", "numa", "l1cache", "l2cache", "l3cache"}
_PER_NODE = re.compile(r"ppr:(\d+):node")


def map_ranks(slots: Mapping[str, int], nprocs: int, map_by: str | None) -> list[str]:
    """Return each rank's host, by rank; "?" for every rank where only mpirun can tell.

    Args:
        slots: Slots by host, in the order of the hosts.
        nprocs: Number of ranks.
        map_by: mpirun's --map-by.
    """
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


def _round_robin(slots: Mapping[str, int]) -> list[str]:
    rounds = range(max(slots.values()))
    return [name for turn in rounds for name, number in slots.items() if turn < number]


def _cut(names: list[str], nprocs: int) -> list[str]:
    return names[:nprocs] if len(names) >= nprocs else ["?"] * nprocs
