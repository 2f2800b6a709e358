"""PALS: mpiexec of HPE Cray systems."""

from collections.abc import Mapping

from unilaunch.environments.reading import evidence, read_numbers
from unilaunch.world import Found

RANK = "PALS_RANKID"
SIZES = ("PALS_NRANKS", "PALS_SIZE", "PMI_SIZE")  # versions differ in the name
LOCAL_RANK = "PALS_LOCAL_RANKID"
LOCAL_SIZE = "PALS_LOCAL_SIZE"
APPLICATION = "PALS_APID"  # names the start


def detect(environ: Mapping[str, str]) -> Found | None:
    """Read PALS' variables; None when this process was not started by it.

    Raises:
        EnvironmentMismatchError: The size is missing, or one of the variables makes no sense.
    """
    if RANK not in environ:
        return None
    size = next((name for name in SIZES if name in environ), SIZES[0])
    numbers = read_numbers(environ, "PALS", (RANK, size, LOCAL_RANK))
    return Found(
        launcher="PALS",
        rank=numbers[RANK],
        size=numbers[size],
        local_rank=numbers[LOCAL_RANK],
        local_size=int(environ[LOCAL_SIZE]) if environ.get(LOCAL_SIZE, "").isdecimal() else None,
        run_id=f"pals-{environ[APPLICATION]}" if APPLICATION in environ else "",
        evidence=evidence(environ, RANK, size, LOCAL_RANK, LOCAL_SIZE, APPLICATION),
    )
