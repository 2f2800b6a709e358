"""Hydra: mpiexec of MPICH and of Intel MPI."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unilaunch.interfaces.world import LauncherInfo, Store
from unilaunch.launchers.launcher import Launcher
from unilaunch.overriding import override

if TYPE_CHECKING:
    from unilaunch.launchers.mpirun import Mpirun

RANK = "PMI_RANK"  # "3"
SIZE = "PMI_SIZE"  # "8"
LOCAL_RANK = "MPI_LOCALRANKID"  # "1"
LOCAL_SIZE = "MPI_LOCALNRANKS"  # "4"
INTEL = "I_MPI_HYDRA_UUID"  # Intel MPI only: names the start
NEEDED = (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE)


class Hydra(Launcher):
    """Hydra's mpiexec."""

    title = "Hydra (MPICH, Intel MPI)"
    order = 60
    prefixes = ("PMI_", "MPI_LOCAL", "HYDI_", "HYDRA_", "I_MPI_")
    sizes = (SIZE,)
    programs = ("mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy")
    libraries = ("libmpi.so.12", "libmpich.so.12")  # the last one is for Debian's MPICH
    startable = "MPICH or Intel MPI"

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read Hydra's variables; None when this process was not started by its mpiexec.

        PMI_RANK alone may be another launcher's (srun --mpi=pmi2), so one of Hydra's other variables must be set too.
        """
        if LOCAL_RANK not in environ and LOCAL_SIZE not in environ:
            return None
        name, run_id = ("Intel MPI", f"intel-{environ[INTEL]}") if INTEL in environ else ("MPICH", "")
        return self.describe(environ, NEEDED, [INTEL], launcher=name, run_id=run_id, store=Store.PMI)

    @override
    def recognise(self, path: Path, said: str) -> "Mpirun | None":
        """Recognise this mpirun by its version, in the module that writes its command line."""
        from unilaunch.launchers.hydra_mpirun import recognise

        return recognise(path, said)
