"""No launcher: the only rank. A process that is said to be one of several is refused, never run as world size 1."""

import os
import time
from collections.abc import Mapping

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.world import Found

#: What says that there are more ranks, though the rest of its launcher's environment is missing.
#: SLURM_NTASKS is not here: an sbatch script has it and is no task.
SIZE_VARIABLES = {
    "PMI_SIZE": "a PMI launcher",
    "SLURM_STEP_NUM_TASKS": "Slurm",
    "PALS_NRANKS": "PALS",
    "FLUX_JOB_SIZE": "Flux",
    "WORLD_SIZE": "torchrun, or the shell,",
    "MS_WORKER_NUM": "msrun",
}


def only_rank(environ: Mapping[str, str]) -> Found:
    """Return a world of one rank.

    Raises:
        EnvironmentMismatchError: A variable says that there are more ranks.
    """
    for name, launcher in SIZE_VARIABLES.items():
        if environ.get(name, "1") not in {"0", "1"}:
            raise EnvironmentMismatchError(
                f"{name}={environ[name]} says that {launcher} started {environ[name]} ranks, and what else it would "
                f"set is missing: start the ranks with a launcher (see unilaunch explain), or unset {name}"
            )
    run_id = f"alone-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return Found(launcher="none", rank=0, size=1, local_rank=0, local_size=1, run_id=run_id, evidence={}, mpi=False)
