"""msrun, MindSpore's own launcher."""

from collections.abc import Mapping

from unilaunch.environments.reading import evidence, read_numbers
from unilaunch.world import Found

ROLE = "MS_ROLE"
RANKS = ("RANK_ID", "MS_NODE_ID")  # "1"; the second is all there is where a cluster is set up without msrun
SIZE = "MS_WORKER_NUM"
ADDRESS = "MS_SCHED_HOST"
PORT = "MS_SCHED_PORT"
WORKER = "MS_WORKER"
SCHEDULER = "MS_SCHED"


def is_scheduler(environ: Mapping[str, str]) -> bool:
    """Whether msrun started this process to be MindSpore's scheduler, which is no rank."""
    return environ.get(ROLE) == SCHEDULER


def detect(environ: Mapping[str, str]) -> Found | None:
    """Read msrun's variables; None when this process is no worker of it.

    Raises:
        EnvironmentMismatchError: Some of the variables are there and some are not, or one makes no sense.
    """
    if environ.get(ROLE) != WORKER:
        return None
    rank = next((name for name in RANKS if name in environ), RANKS[0])
    numbers = read_numbers(environ, "msrun", (rank, SIZE))
    return Found(
        launcher="msrun",
        rank=numbers[rank],
        size=numbers[SIZE],
        local_rank=None,
        local_size=None,
        run_id=f"msrun-{environ.get(ADDRESS, '')}-{environ.get(PORT, '')}",
        evidence=evidence(environ, ROLE, rank, SIZE, ADDRESS, PORT),
        mpi=False,
        heads=tuple(filter(None, [environ.get(ADDRESS, "")])),
    )
