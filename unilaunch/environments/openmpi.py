"""Open MPI 4 (orterun) and 5 (prterun)."""

from collections.abc import Mapping

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.world import Found

RANK = "OMPI_COMM_WORLD_RANK"  # "3"
SIZE = "OMPI_COMM_WORLD_SIZE"  # "8"
LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"  # "1"; OMPI_COMM_WORLD_NODE_RANK is no node index, and is not read
LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"  # "4"
NAMESPACE = "PMIX_NAMESPACE"  # 4: "2937913345"; 5: "prterun-node0-1234@1"
VERSION = "OMPI_VERSION"  # 5 only: "5.0.11"
DAEMON = "PRTE_LAUNCHED"  # 5 only: "1"


def detect(environ: Mapping[str, str]) -> Found | None:
    """Read Open MPI's variables; None when this process was not started by its mpirun.

    Raises:
        EnvironmentMismatchError: Some of the variables are there and some are not, or one is no number.
    """
    needed = (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE)
    if not any(name in environ for name in needed):
        return None
    missing = [name for name in needed if name not in environ]
    if missing:
        there = [f"{name}={environ[name]}" for name in needed if name in environ]
        raise EnvironmentMismatchError(
            f"half of Open MPI's environment: {', '.join(there)} set, {', '.join(missing)} not; "
            "start the ranks with mpirun, or unset what an earlier run left in this shell"
        )
    numbers = {name: environ[name] for name in needed}
    wrong = [f"{name}={value}" for name, value in numbers.items() if not value.isdecimal()]
    if wrong or int(numbers[RANK]) >= int(numbers[SIZE]):
        shown = ", ".join(wrong) or f"{RANK}={numbers[RANK]} is not below {SIZE}={numbers[SIZE]}"
        raise EnvironmentMismatchError(f"Open MPI's environment makes no sense: {shown}; do not set these by hand")
    version = "5" if VERSION in environ or DAEMON in environ else "4"
    optional = {name: environ[name] for name in (NAMESPACE, VERSION, DAEMON) if name in environ}
    return Found(
        launcher=f"Open MPI {version}",
        rank=int(numbers[RANK]),
        size=int(numbers[SIZE]),
        local_rank=int(numbers[LOCAL_RANK]),
        local_size=int(numbers[LOCAL_SIZE]),
        run_id=f"openmpi-{environ.get(NAMESPACE, 'unknown')}",
        evidence=numbers | optional,
    )
