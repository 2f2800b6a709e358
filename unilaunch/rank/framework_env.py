"""The environment that a framework finds: one table, pure, so that what is shown is what is set."""

from collections.abc import Mapping

from unilaunch.backend import Backend, Placement, Rendezvous
from unilaunch.world import World

#: Every library that starts threads of its own. MKL takes one thread under MPI unless it is told.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def framework_env(
    backend: Backend, world: World, placement: Placement, rendezvous: Rendezvous | None, exported: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables to set before the framework is imported: none that the user exported."""
    wanted = dict.fromkeys(THREADS, str(placement.threads)) | backend.variables(world, placement, rendezvous)
    return {name: value for name, value in wanted.items() if name not in exported}
