"""msrun, MindSpore's own launcher."""

from collections.abc import Mapping

from unilaunch.environments.reading import evidence, read_numbers
from unilaunch.world import Found

ROLE = "MS_ROLE"
RANK = "RANK_ID"  # "1"; MS_NODE_ID is the same
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
    numbers = read_numbers(environ, "msrun", (RANK, SIZE))
    return Found(
        launcher="msrun",
        rank=numbers[RANK],
        size=numbers[SIZE],
        local_rank=None,
        local_size=None,
        run_id=f"msrun-{environ.get(ADDRESS, '')}-{environ.get(PORT, '')}",
        evidence=evidence(environ, ROLE, RANK, SIZE, ADDRESS, PORT),
        mpi=False,
        heads=tuple(filter(None, [environ.get(ADDRESS, "")])),
    )
