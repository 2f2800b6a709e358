"""What is asked of an mpirun, in no launcher's words."""

from collections.abc import Mapping
from dataclasses import dataclass

from unilaunch.job.hostfile import Host
from unilaunch.job.mpirun.find import Mpirun
from unilaunch.launch_spec import MpiSpec

#: What a rank on another host would miss: ssh's login environment has none of it.
_NEEDED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONHOME", "PYTHONUNBUFFERED", "DATA_PATH",
           "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")  # fmt: skip
_PREFIXES = (
    "UNILAUNCH_", "_UNILAUNCH_", "NCCL_", "TORCH_", "GLOO_", "HCCL_", "MS_", "GLOG_", "OMP_", "MKL_", "OPENBLAS_",
    "HF_",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """What to start.

    Attributes:
        mpirun: With which.
        nprocs: Number of ranks.
        hosts: Where; empty for this host, or what a resource manager has allocated.
        hostfile: The user's own file, if mpirun can read it as it is.
        several: More than one host.
        host_timeout: Seconds for which a host may not answer before it counts as lost.
        more_than_cores: Some host gets more ranks than this host has cores.
        mpi: The user's options for mpirun.
        program: What each rank is.
        environ: This process's environment.
    """

    mpirun: Mpirun
    nprocs: int
    hosts: tuple[Host, ...]
    hostfile: str | None
    several: bool
    host_timeout: float
    more_than_cores: bool
    mpi: MpiSpec
    program: tuple[str, ...]
    environ: Mapping[str, str]

    def forwarded(self) -> list[str]:
        """Return the variables that ranks on other hosts are to find as they are here, beside the user's own `-x`."""
        named = {text.partition("=")[0] for text in self.mpi.x}
        if not self.several:
            return []
        return sorted(
            name for name in self.environ if (name in _NEEDED or name.startswith(_PREFIXES)) and name not in named
        )
