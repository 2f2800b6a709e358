"""Bare PMIx: prterun, prun, and srun --mpi=pmix where nothing else is known. Only MPI tells the number of ranks."""

from collections.abc import Mapping

from unilaunch.environments.reading import evidence, is_number
from unilaunch.errors import EnvironmentMismatchError
from unilaunch.world import Found

RANK = "PMIX_RANK"
NAMESPACE = "PMIX_NAMESPACE"  # prterun: "prterun-node0-1234@1"; srun: "slurm.pmix.7.0"; Open MPI 4: "2937913345"
DAEMON = "PRTE_LAUNCHED"  # prterun, and Open MPI 5, which is built on it


def is_launcher(environ: Mapping[str, str]) -> bool:
    """Whether PMIx is not just how another launcher speaks with its ranks: prterun has no variables of its own."""
    return DAEMON in environ and "OMPI_COMM_WORLD_RANK" not in environ


def detect(environ: Mapping[str, str]) -> Found | None:
    """Read PMIx' variables; None when this process is no client of it. The size is 0: MPI tells it.

    Raises:
        EnvironmentMismatchError: One of the two is missing, or the rank is no number.
    """
    if RANK not in environ and NAMESPACE not in environ:
        return None
    rank = environ.get(RANK, "")
    if not is_number(rank) or NAMESPACE not in environ:
        raise EnvironmentMismatchError(
            f"half of PMIx' environment: {RANK}={rank or 'not set'}, {NAMESPACE}="
            f"{environ.get(NAMESPACE, 'not set')}; start the ranks with a PMIx launcher, or unset them"
        )
    return Found(
        launcher="PMIx",
        rank=int(rank),
        size=0,
        local_rank=None,
        local_size=None,
        run_id=f"pmix-{environ[NAMESPACE]}",
        evidence=evidence(environ, RANK, NAMESPACE),
    )
