"""The devices and cores that a process can see, found without a framework."""

import os
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from unilaunch.errors import EnvironmentMismatchError

#: For each kind of device: the variable with the visible devices, and the names of its device files.
DEVICES = {
    "cuda": ("CUDA_VISIBLE_DEVICES", re.compile(r"nvidia(\d+)")),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES", re.compile(r"davinci(\d+)")),
}
_NUMBER = re.compile(r"[0-9]{1,9}")


def visible_devices(environ: Mapping[str, str], folder: Path = Path("/dev")) -> dict[str, list[str]]:
    """Return the devices of each kind that this process can see, without any framework.

    A launcher may let each rank open another device (Slurm with ConstrainDevices): then "0" is another one on each
    rank, and the devices are named by the numbers of their files.

    Raises:
        EnvironmentMismatchError: A variable has devices without commas between them.
    """
    seen = {}
    for kind, (variable, file_name) in DEVICES.items():
        files = {int(found[1]): path for path in folder.iterdir() if (found := file_name.fullmatch(path.name))}
        allowed = [number for number in sorted(files) if os.access(files[number], os.R_OK | os.W_OK)]
        if variable in environ:
            _refuse_spaces(variable, environ[variable])
            names = _named(environ[variable], len(files) if kind == "cuda" and files else None)
            if kind == "cuda" and len(set(names)) < len(names):
                names = []  # CUDA shows no device if one is named twice
        else:
            names = [str(index) for index in range(len(allowed))]
        if len(allowed) < len(files):
            by_index = {str(index): str(number) for index, number in enumerate(allowed)}
            names = [by_index.get(name, name) for name in names]
        seen[kind] = names
    return seen


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
        return is_mig(entry) or entry.startswith("GPU-")

    names = list(takewhile(is_device, (entry.strip() for entry in value.split(","))))
    return names[:1] if names and is_mig(names[0]) else names


def is_mig(name: str) -> bool:
    """Return whether a device is a MIG instance (a part of a GPU): CUDA shows a process only the first of its list."""
    return name.startswith("MIG-")


def count_cores() -> int:
    """Return the number of cores (not of hardware threads) that this process may run on, as mpirun counts slots."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for processor in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{processor}/topology")
        try:
            cores.add((topology / "thread_siblings_list").read_text(encoding="ascii"))
        except OSError:
            return len(allowed)
    return len(cores)
