"""Hydra: mpiexec of MPICH and of Intel MPI."""

from collections.abc import Mapping

from unilaunch.environments.reading import evidence, read_numbers
from unilaunch.world import Found

RANK = "PMI_RANK"  # "3"
SIZE = "PMI_SIZE"  # "8"
LOCAL_RANK = "MPI_LOCALRANKID"  # "1"
LOCAL_SIZE = "MPI_LOCALNRANKS"  # "4"
INTEL = "I_MPI_HYDRA_UUID"  # Intel MPI only: names the start
NEEDED = (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE)


def detect(environ: Mapping[str, str]) -> Found | None:
    """Read Hydra's variables; None when this process was not started by its mpiexec.

    PMI_RANK alone may be another launcher's (srun --mpi=pmi2), so it takes one of Hydra's own beside it.

    Raises:
        EnvironmentMismatchError: Some of the variables are there and some are not, or one makes no sense.
    """
    if LOCAL_RANK not in environ and LOCAL_SIZE not in environ:
        return None
    numbers = read_numbers(environ, "Hydra (MPICH, Intel MPI)", NEEDED)
    return Found(
        launcher="Intel MPI" if INTEL in environ else "MPICH",
        rank=numbers[RANK],
        size=numbers[SIZE],
        local_rank=numbers[LOCAL_RANK],
        local_size=numbers[LOCAL_SIZE],
        run_id=f"intel-{environ[INTEL]}" if INTEL in environ else "",
        evidence=evidence(environ, *NEEDED, INTEL),
    )
