"""`unilaunch explain`: which launcher was detected and why, and each framework's variables. It imports no framework."""

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import cast

from unilaunch import launchers
from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces import plugins
from unilaunch.interfaces.backend import Backend, Placement, Rendezvous
from unilaunch.interfaces.world import LauncherInfo, World
from unilaunch.launchers import Evidence, own_prefixes
from unilaunch.launchers.launcher import SHORTEST_LIFE
from unilaunch.machine.devices import DEVICES, absent_devices, visible_devices
from unilaunch.machine.variables import staying
from unilaunch.rank.framework_env import framework_env
from unilaunch.rank.identity import own_facts
from unilaunch.rank.placement import Facts, place
from unilaunch.rendezvous import mpi
from unilaunch.spec.run_spec import RunSpec

#: mpirun can hang when this many ranks end at once.
_MANY = 16
_TO_BE_AGREED = Rendezvous("(agreed on by the ranks)", 0, "(the way to rank 0)")


def explain(spec: RunSpec, environ: Mapping[str, str]) -> int:
    """Print what was detected, in one write, and return 0; 2 if `run` would refuse to start here.

    Under a launcher every rank prints its identity, and rank 0 prints the rest too.

    Args:
        spec: The options that `run` would have without a command line.
        environ: The process's environment.
    """
    stays_until = time.monotonic() + SHORTEST_LIFE
    seen = launchers.survey(environ)
    try:
        found = launchers.detect(environ)
    except EnvironmentMismatchError as error:
        _print([*_ignored(seen), f"unilaunch: {error}"])
        return EnvironmentMismatchError.exit_code
    lines = [_identity(found)]
    if found.rank == 0:
        lines += [
            *_used(found),
            *_ignored(seen),
            *_hardware(environ),
            *_staying(environ),
            *_frameworks(spec, found, environ),
        ]
    _print(lines)
    if found.size > _MANY:
        time.sleep(max(0.0, stays_until - time.monotonic()))
    return 0


def _print(lines: list[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def _identity(found: LauncherInfo) -> str:
    size = str(found.size) if found.size else "(MPI tells)"
    local = "" if found.local_rank is None else f", local rank {found.local_rank}"
    local += "" if found.local_size is None else f" of {found.local_size}"
    return f"rank {found.rank} of {size}{local} on {socket.gethostname()}, launcher: {found.launcher}"


def _used(found: LauncherInfo) -> Iterator[str]:
    for name, value in found.evidence.items():
        yield f"  used     {name}={value}"
    if not found.evidence:
        yield "  used     nothing: no launcher's variables are set"
    elif found.size != 1:
        file = "a file that only you can read, in your cache folder"
        yield f"  ranks    find each other through {found.store.value if found.mpi else file}"
        yield "           local and node ranks are counted from the hosts that they name"


def _ignored(seen: list[Evidence]) -> Iterator[str]:
    for one in seen:
        if not one.chosen:
            said = _identity(one.info) if one.info else one.error
            yield f"  ignored  {one.name}: {said}"
            yield f"           {one.why}"


def _hardware(environ: Mapping[str, str]) -> Iterator[str]:
    cores = sorted(os.sched_getaffinity(0))
    yield f"  cores    {len(cores)}: {','.join(map(str, cores))}"
    for kind, names in visible_devices(environ).items():
        mask = DEVICES[kind][0]
        chosen = f" ({mask}={environ[mask]})" if mask in environ else ""
        yield f"  {kind:8} {','.join(names) or 'none'}{chosen}"
    yield from (f"           {line}" for line in absent_devices(environ))


def _staying(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that `launch` does not pass on to other hosts."""
    yield "  hosts    launch passes on every exported variable to the other hosts, but"
    yield from (f"           {', '.join(names)}: {why}" for why, names in staying(environ, own_prefixes()).items())


def _frameworks(spec: RunSpec, found: LauncherInfo, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that `run` would set for each framework, and those that the user exported."""
    if found.mpi and found.size != 1:
        yield from _variables("MPI", mpi.variables(found, environ))
    for backend in plugins.usable_backends():
        for_program = partial(
            framework_env, [backend], program=True, threads=spec.threads, master=(spec.master_addr, spec.master_port)
        )
        one, other = (for_program(*_place(backend, spec, found, environ, unknown), environ) for unknown in (1, 2))
        everything = for_program(*_place(backend, spec, found, environ, 1), {})
        agreed = {name: value if value == other[name] else "(agreed on by the ranks)" for name, value in one.items()}
        yield from _variables(backend.name, agreed)
        for name in sorted(set(everything) - set(one)):
            yield f"           {name}={environ[name]}  (exported: left as it is)"


def _place(
    backend: Backend, spec: RunSpec, found: LauncherInfo, environ: Mapping[str, str], unknown: int
) -> tuple[World, Placement, Rendezvous]:
    """Return a rank's values after the agreement of all ranks, with *unknown* for numbers that need the agreement."""
    visible = visible_devices(environ)
    best = next((kind for kind in backend.devices if visible.get(kind)), "cpu")
    kind = spec.device if spec.device in backend.devices else best
    local_rank = unknown if found.local_rank is None else found.local_rank
    node_rank, num_hosts = (0, 1) if found.local_size == found.size else (unknown, unknown)
    facts = cast("Facts", own_facts(environ, "", ""))
    alone = place("cpu", ["cpu"], None, [facts])[0].threads
    world = World(
        found.rank, found.size, local_rank, found.local_size or unknown, node_rank, num_hosts, socket.gethostname(),
        found.launcher,
    )  # fmt: skip
    placement = Placement(
        kind, 0 if kind == "cpu" else local_rank, spec.threads or (alone if found.size == 1 else unknown)
    )
    return world, placement, _TO_BE_AGREED


def _variables(name: str, variables: Mapping[str, str]) -> Iterator[str]:
    yield f"{name} would find"
    for variable, value in sorted(variables.items()):
        yield f"           {variable}={value if value != '0' or variable != 'MASTER_PORT' else '(held by rank 0)'}"
