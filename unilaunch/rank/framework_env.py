"""The environment that a framework finds: one table, pure, so that what is shown is what is set."""

from collections.abc import Mapping, Sequence

from unilaunch.backend import Backend, Placement, Rendezvous
from unilaunch.launchers import set_by_launchers
from unilaunch.world import World

#: Every library that starts threads of its own. MKL takes one thread under MPI unless it is told.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
#: Who a rank is, is not for a shell to say.
IDENTITY = frozenset(
    {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "RANK_ID", "RANK_SIZE", "MS_NODE_ID", "MS_WORKER_NUM",
    }
)  # fmt: skip


def framework_env(  # noqa: PLR0913  (it is the one table)
    backends: Sequence[Backend],
    world: World,
    placement: Placement,
    rendezvous: Rendezvous | None,
    exported: Mapping[str, str],
    *,
    program: bool = False,
) -> dict[str, str]:
    """Return the variables to set before the framework is imported: none that the user exported.

    Args:
        backends: The frameworks that may be imported.
        world: Who this rank is.
        placement: What it runs on.
        rendezvous: Where rank 0 is; None if the framework does not need it.
        exported: The process's environment.
        program: The user's own program is to run, which looks for what the framework's own launcher sets.
    """
    wanted = dict.fromkeys(THREADS, str(placement.threads))
    for backend in backends:
        wanted |= backend.variables(world, placement, rendezvous)
        if program and rendezvous and backend.launcher != world.launcher:
            wanted |= backend.program_variables(world, rendezvous)
    kept = set(exported) - set_by_launchers(exported, but=world.launcher)
    if world.launcher not in {backend.launcher for backend in backends}:
        kept -= IDENTITY  # left by another launcher
    return {name: value for name, value in wanted.items() if name not in kept}
