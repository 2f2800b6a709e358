"""The hosts that a resource manager (Slurm, PBS, LSF, Grid Engine) has allocated to this shell."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from unilaunch.errors import SpecError
from unilaunch.spec.hostfile import Host, parse_hosts

_SLURM = "SLURM_JOB_ID"
_NODES = "SLURM_JOB_NODELIST"  # "n[0-1]"
_TASKS = "SLURM_TASKS_PER_NODE"  # "2(x3),1"
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def is_allocated(environ: Mapping[str, str]) -> bool:
    """Return whether this shell has an allocation; a job's number alone, as of an IDE, names no host."""
    return any(name in environ for name in _READERS if name != _SLURM or _NODES in environ)


def allocated_hosts(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the hosts of this shell's allocation with their slots; empty if there are none or they cannot be read."""
    with suppress(OSError, ValueError, SpecError):
        for name, read in _READERS.items():
            if name in environ:
                return tuple(Host(host, slots) for host, slots in read(environ[name], environ).items())
    return ()


def own_name(environ: Mapping[str, str]) -> str:
    """Return the name that the resource manager has for this host; "" where it says none: it is the host's own."""
    return environ.get("SLURMD_NODENAME", "")


def hosts_to_name(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the allocated hosts that mpirun must get as `-H`: every mpirun reads Slurm's by itself.

    An mpirun that was built without support for PBS or LSF would start all ranks on this host.
    """
    return () if _SLURM in environ else allocated_hosts(environ)


def _read_slurm(_: str, environ: Mapping[str, str]) -> Mapping[str, int]:
    runs = [_REPEATED.fullmatch(text) for text in environ.get(_TASKS, "").split(",")]
    tasks = [int(run[1]) for run in runs if run for _ in range(int(run[2] or 1))]
    nodes = [host.name for host in parse_hosts(environ.get(_NODES, ""))]
    return dict(zip(nodes, tasks, strict=True))


def _read_lines(path: str, _: Mapping[str, str]) -> Mapping[str, int]:
    """Read a file that names a host once for each slot."""
    return Counter(Path(path).read_text(encoding="utf-8").split())


def _add(rows: Iterable[Sequence[str]]) -> Mapping[str, int]:
    slots: Counter[str] = Counter()
    for host, number, *_ in rows:
        slots[host] += int(number)
    return slots


#: By variable, the function that reads its value; the first variable that is set counts.
_READERS: Mapping[str, Callable[[str, Mapping[str, str]], Mapping[str, int]]] = {
    _SLURM: _read_slurm,
    "PBS_NODEFILE": _read_lines,
    "LSB_DJOB_HOSTFILE": _read_lines,  # LSB_MCPU_HOSTS and LSB_HOSTS are not set if they would be too long
    "LSB_MCPU_HOSTS": lambda text, _: _add(
        zip(text.split()[::2], text.split()[1::2], strict=True)
    ),  # "node0 8 node1 4"
    "LSB_HOSTS": lambda text, _: Counter(text.split()),  # "node0 node0 node1"
    # Lines "node0 8 all.q@node0 <NULL>": a host, its slots and its queue; a host stands there once for each queue.
    "PE_HOSTFILE": lambda path, _: _add(map(str.split, Path(path).read_text(encoding="utf-8").splitlines())),
}
