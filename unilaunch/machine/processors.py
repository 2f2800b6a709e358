"""The processors of this machine, and their shares for several ranks."""

import os
from collections.abc import Collection
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

_SYSTEM = Path("/sys/devices/system")


def split_processors(ranks: int, allowed: Collection[int], system: Path = _SYSTEM) -> list[set[int]]:
    """Return the processors of each rank; every rank has all of them if there are more ranks than cores.

    Each rank gets whole cores. The cores are taken in the order of their memory nodes (NUMA), so that a rank spans two
    nodes only where the number of ranks demands it.

    Args:
        ranks: Number of ranks, 1 or more.
        allowed: The processors of this process.
        system: Where the kernel describes the machine.
    """
    cores: dict[tuple[int, ...], set[int]] = {}
    for processor in sorted(allowed):
        cores.setdefault(_core(processor, system), set()).add(processor)
    if ranks > len(cores):
        return [set(allowed)] * ranks
    ordered = [processors for _, processors in sorted(cores.items())]
    ends = [len(ordered) * rank // ranks for rank in range(ranks + 1)]
    return [set().union(*ordered[begin:end]) for begin, end in pairwise(ends)]


def _core(processor: int, system: Path) -> tuple[int, ...]:
    """Return the memory node, the package and the core of a processor; the processor alone if that is unknown."""
    folder = system / "cpu" / f"cpu{processor}"
    with suppress(OSError, ValueError):
        node = next((int(path.name.removeprefix("node")) for path in folder.glob("node[0-9]*")), 0)
        names = ("physical_package_id", "core_id")
        return (node, *(int((folder / "topology" / name).read_text(encoding="ascii")) for name in names))
    return (processor,)


def bind(processors: Collection[int]) -> None:
    """Bind this process to *processors*; it stays where it is if the kernel refuses."""
    with suppress(OSError):
        os.sched_setaffinity(0, processors)
