"""Open MPI 4 (orterun) and 5 (prterun)."""

from collections.abc import Mapping

from unilaunch.environments.reading import evidence, read_numbers
from unilaunch.world import Found

RANK = "OMPI_COMM_WORLD_RANK"  # "3"
SIZE = "OMPI_COMM_WORLD_SIZE"  # "8"
LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"  # "1"; OMPI_COMM_WORLD_NODE_RANK is no node index, and is not read
LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"  # "4"
NAMESPACE = "PMIX_NAMESPACE"  # 4: "2937913345"; 5: "prterun-node0-1234@1"
VERSION = "OMPI_VERSION"  # 5 only: "5.0.11"
DAEMON = "PRTE_LAUNCHED"  # 5 only: "1"
NEEDED = (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE)


def detect(environ: Mapping[str, str]) -> Found | None:
    """Read Open MPI's variables; None when this process was not started by its mpirun.

    Raises:
        EnvironmentMismatchError: Some of the variables are there and some are not, or one makes no sense.
    """
    if not any(name in environ for name in NEEDED):
        return None
    numbers = read_numbers(environ, "Open MPI", NEEDED)
    version = "5" if VERSION in environ or DAEMON in environ else "4"
    return Found(
        launcher=f"Open MPI {version}",
        rank=numbers[RANK],
        size=numbers[SIZE],
        local_rank=numbers[LOCAL_RANK],
        local_size=numbers[LOCAL_SIZE],
        run_id=f"openmpi-{environ.get(NAMESPACE, 'unknown')}",
        evidence=evidence(environ, *NEEDED, NAMESPACE, VERSION, DAEMON),
    )
