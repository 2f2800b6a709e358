"""The devices and cores that a process can see, found without a framework."""

import os
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

#: For each kind of device: the variable with the visible devices, and the names of its device files.
DEVICES = {
    "cuda": ("CUDA_VISIBLE_DEVICES", re.compile(r"nvidia\d+")),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES", re.compile(r"davinci\d+")),
}


def visible_devices(environ: Mapping[str, str], folder: Path = Path("/dev")) -> dict[str, list[str]]:
    """Return the devices of each kind that this process can see, without any framework."""
    seen = {}
    for kind, (variable, file_name) in DEVICES.items():
        if variable in environ:
            named = (entry.strip() for entry in environ[variable].split(","))
            # Both runtimes ignore all entries from the first invalid one on.
            seen[kind] = list(takewhile(lambda entry: entry not in {"", "-1", "NoDevFiles"}, named))
        else:
            files = [path.name for path in folder.iterdir() if file_name.fullmatch(path.name)]
            seen[kind] = [str(index) for index in range(len(files))]
    return seen


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
