"""The environment for a framework, from one pure function, so that `explain` shows exactly what `run` sets."""

from collections.abc import Collection, Mapping, Sequence

from unilaunch.interfaces.backend import Backend, Placement, Rendezvous
from unilaunch.interfaces.world import World
from unilaunch.launchers import set_by_launchers
from unilaunch.launchers.launcher import is_number

#: Every library that starts threads. MKL uses one thread under MPI unless its variable is set.
_OMP = "OMP_NUM_THREADS"
THREADS = (_OMP, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
#: What a program finds beside them, whichever framework it imports, also none of ours.
_IDENTITY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def framework_env(  # noqa: PLR0913  (it is the one table)
    backends: Sequence[Backend],
    world: World,
    placement: Placement,
    rendezvous: Rendezvous | None,
    exported: Mapping[str, str],
    *,
    program: bool = False,
    threads: int | None = None,
    master: tuple[str | None, int | None] = (None, None),
) -> dict[str, str]:
    """Return the variables to set before the framework is imported, without those that the user exported.

    Args:
        backends: The frameworks that may be imported.
        world: The identity of this rank.
        placement: Its device and threads.
        rendezvous: Where rank 0 is; None if the framework does not need it.
        exported: The process's environment.
        program: Whether the target is a user's program, which may need the variables of the framework's launcher.
        threads: The user's --threads, which win over exported variables.
        master: The user's --master-addr and --master-port, which win too; where they are not given, what is exported.
    """
    left_over = set_by_launchers(exported, but=world.launcher)
    kept_threads = None if threads else exported_threads(exported, left_over)
    wanted = dict.fromkeys(THREADS, str(kept_threads or placement.threads))
    if rendezvous:
        wanted |= dict(zip(_MASTER, (rendezvous.address, str(rendezvous.port)), strict=True))
    if rendezvous and program:
        numbers = (world.rank, world.size, world.local_rank, world.local_size)
        wanted |= dict(zip(_IDENTITY, map(str, numbers), strict=True))
    for backend in backends:
        wanted |= backend.variables(world, placement, rendezvous)
        if program and rendezvous and backend.launcher != world.launcher:
            wanted |= backend.program_variables(world, rendezvous)
    beaten = {name for name, value in zip(_MASTER, master, strict=True) if value and exported.get(name) != str(value)}
    kept = set(exported) - left_over - (beaten - set_by_launchers(exported)) - set(THREADS if threads else ())
    if world.launcher not in {backend.launcher for backend in backends}:
        kept -= set(_IDENTITY)  # left by another launcher
    for backend in backends:
        if backend.launcher != world.launcher:
            kept -= backend.identity
    return {name: value for name, value in wanted.items() if name not in kept}


def exported_threads(environ: Mapping[str, str], left_out: Collection[str]) -> int | None:
    """Return the threads in OMP_NUM_THREADS; None if it has no number, or is one of the variables *left_out*."""
    first = environ.get(_OMP, "").partition(",")[0].strip()  # of "4,2" the first: the others are for nested threads
    return int(first) or None if is_number(first) and _OMP not in left_out else None
