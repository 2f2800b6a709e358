"""MVAPICH2: mpirun_rsh."""

from collections.abc import Mapping

from unilaunch.environments.reading import evidence, read_numbers
from unilaunch.world import Found

RANK = "MV2_COMM_WORLD_RANK"
SIZE = "MV2_COMM_WORLD_SIZE"
LOCAL_RANK = "MV2_COMM_WORLD_LOCAL_RANK"
LOCAL_SIZE = "MV2_COMM_WORLD_LOCAL_SIZE"
NEEDED = (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE)


def detect(environ: Mapping[str, str]) -> Found | None:
    """Read MVAPICH2's variables; None when this process was not started by it.

    Raises:
        EnvironmentMismatchError: Some of the variables are there and some are not, or one makes no sense.
    """
    if not any(name in environ for name in NEEDED):
        return None
    numbers = read_numbers(environ, "MVAPICH2", NEEDED)
    return Found(
        launcher="MVAPICH2",
        rank=numbers[RANK],
        size=numbers[SIZE],
        local_rank=numbers[LOCAL_RANK],
        local_size=numbers[LOCAL_SIZE],
        run_id="",
        evidence=evidence(environ, *NEEDED),
    )
