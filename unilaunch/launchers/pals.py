"""PALS: mpiexec of HPE Cray systems."""

from collections.abc import Mapping

from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.launcher import Launcher
from unilaunch.overriding import override

RANK = "PALS_RANKID"
#: Versions differ in the name; PALS_NRANKS is the last, as it can also be what a user exported for mpiexec's -n.
SIZES = ("PMI_SIZE", "PALS_SIZE", "PALS_NRANKS")
LOCAL_RANK = "PALS_LOCAL_RANKID"
LOCAL_SIZE = "PALS_LOCAL_SIZE"
NAMESPACE = "PMIX_NAMESPACE"
APPLICATION = "PALS_APID"  # identifies the start; "JOB.STEP" if Slurm has set it


class Pals(Launcher):
    """PALS' mpiexec."""

    title = "PALS"
    order = 40
    prefixes = ("PALS_",)
    sizes = ("PALS_NRANKS",)
    programs = ("palsd", "palscmd")

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read PALS' variables; None when this process was not started by it.

        Raises:
            EnvironmentMismatchError: The size is missing, or one of the variables has an invalid value.
        """
        if RANK not in environ or _is_slurm(environ):
            return None
        size = next((name for name in SIZES if name in environ), SIZES[0])
        if size not in environ and NAMESPACE in environ:
            return None  # mpiexec --pmi=pmix: the size comes from MPI
        names = (RANK, size, LOCAL_RANK, *([LOCAL_SIZE] if LOCAL_SIZE in environ else []))
        run_id = f"pals-{environ[APPLICATION]}" if APPLICATION in environ else ""
        return self.describe(environ, names, [APPLICATION], run_id=run_id)


def _is_slurm(environ: Mapping[str, str]) -> bool:
    """Return whether this is a task of srun --mpi=cray_shasta, which sets some of PALS' variables for Cray's MPI."""
    step = (environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", ""))
    return all(step) and environ.get(APPLICATION) == ".".join(step)
