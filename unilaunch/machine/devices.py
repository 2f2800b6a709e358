"""The devices, cores and processors that a process can see, found without a framework; shares of them for ranks."""

import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path

from unilaunch.errors import EnvironmentMismatchError, PlacementError
from unilaunch.machine.cgroups import cpu_quota

#: For each kind of device: the variable with the visible devices, and the names of its device files.
DEVICES = {
    "cuda": ("CUDA_VISIBLE_DEVICES", re.compile(r"nvidia(\d+)")),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES", re.compile(r"davinci(\d+)")),
}
_NUMBER = re.compile(r"[0-9]{1,9}")
_SYSTEM = Path("/sys/devices/system")


def visible_devices(environ: Mapping[str, str], folder: Path = Path("/dev")) -> dict[str, list[str]]:
    """Return the devices of each kind that this process can see, without any framework.

    Those that a variable names and that are not there do not count. A launcher may let each rank open another device
    (Slurm with ConstrainDevices): then "0" is another one on each rank, and the devices are named by the numbers of
    their files.

    Raises:
        EnvironmentMismatchError: A variable has devices without commas between them.
    """
    seen = {}
    for kind, (variable, _) in DEVICES.items():
        files = _device_files(kind, folder)
        allowed = [number for number in sorted(files) if os.access(files[number], os.R_OK | os.W_OK)]
        if variable in environ:
            _refuse_spaces(variable, environ[variable])
            names = _named(environ[variable], _count(kind, files, folder))
            if kind == "cuda" and len(set(names)) < len(names):
                names = []  # CUDA shows no device if one is named twice
        else:
            names = [str(index) for index in range(len(allowed))]
        if len(allowed) < len(files):
            by_index = {str(index): str(number) for index, number in enumerate(allowed)}
            names = [by_index.get(name, name) for name in names]
        seen[kind] = names
    return seen


def absent_devices(environ: Mapping[str, str], folder: Path = Path("/dev")) -> list[str]:
    """Return a line for each variable that names devices which are not there."""
    lines = []
    for kind, (variable, _) in DEVICES.items():
        value, files = environ.get(variable, ""), _device_files(kind, folder)
        there, named = (_named(value, most) for most in (_count(kind, files, folder), None))
        if absent := named[len(there) :]:
            number = f"{len(files)} {kind} device{'s' * (len(files) != 1)}" if files else f"no {kind} device"
            verbs = ("are", "do") if absent[1:] else ("is", "does")
            lines.append(
                f"{variable}={value}: {','.join(absent)} {verbs[0]} not there (this host has {number}), and {verbs[1]} "
                "not count"
            )
    return lines


def _device_files(kind: str, folder: Path) -> dict[int, Path]:
    """Return the files of the devices of a kind, by number."""
    pattern = DEVICES[kind][1]
    return {int(found[1]): path for path in folder.iterdir() if (found := pattern.fullmatch(path.name))}


def _count(kind: str, files: Mapping[int, Path], folder: Path) -> int | None:
    """Return how many devices this host has; None if that is not known.

    Windows' Linux has one file for all its GPUs. A container may see an NPU under its own number.
    """
    is_known = not (folder / "dxg").exists() if kind == "cuda" else not files
    return len(files) if is_known else None


def _refuse_spaces(variable: str, value: str) -> None:
    """Refuse devices without commas between them: the frameworks would see the first one only, or none."""
    if any(len(entry.split()) > 1 for entry in value.split(",")):
        raise EnvironmentMismatchError(
            f"{variable}={value!r}: put commas between the devices: {','.join(value.split())}"
        )


def _named(value: str, most: int | None) -> list[str]:
    """Return the devices that the variable names: numbers, below *most* if that is known, or UUIDs.

    Both runtimes ignore all entries from the first invalid one on ("-1", "none").
    """

    def is_device(entry: str) -> bool:
        if _NUMBER.fullmatch(entry):
            return most is None or int(entry) < most
        return most != 0 and (is_mig(entry) or entry.startswith("GPU-"))

    names = list(takewhile(is_device, (entry.strip() for entry in value.split(","))))
    return names[:1] if names and is_mig(names[0]) else names


def is_mig(name: str) -> bool:
    """Return whether a device is a MIG instance (a part of a GPU): CUDA shows a process only the first of its list."""
    return name.startswith("MIG-")


def count_ranks(kind: str, environ: Mapping[str, str]) -> int:
    """Return how many ranks this host takes: one for each device, or one for each core within the container's quota.

    Args:
        kind: "gpu", "cpu", or "auto": devices if any is visible, else cores.
        environ: The process's environment.

    Raises:
        PlacementError: There is no device, and "gpu" asks for one.
    """
    devices = max(map(len, visible_devices(environ).values())) if kind != "cpu" else 0
    if kind == "gpu" and not devices:
        raise PlacementError("-n gpu: no device is visible here: give a number, or -n cpu")
    quota = cpu_quota()
    return devices or max(1, min(count_cores(), int(quota) if quota else count_cores()))


def count_cores() -> int:
    """Return the number of cores (not of hardware threads) that this process may run on, as mpirun counts slots."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for processor in allowed:
        topology = _SYSTEM / f"cpu/cpu{processor}/topology"
        try:
            cores.add((topology / "thread_siblings_list").read_text(encoding="ascii"))
        except OSError:
            return len(allowed)
    return len(cores)


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
