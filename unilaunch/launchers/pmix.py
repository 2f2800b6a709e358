"""Bare PMIx: prterun, prun, and srun --mpi=pmix without other variables. Only MPI has the number of ranks."""

from collections.abc import Mapping

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.launcher import Launcher, evidence, is_number
from unilaunch.overriding import override

RANK = "PMIX_RANK"
NAMESPACE = "PMIX_NAMESPACE"  # prterun: "prterun-node0-1234@1"; srun: "slurm.pmix.7.0"; Open MPI 4: "2937913345"
DAEMON = "PRTE_LAUNCHED"  # prterun, and Open MPI 5, which is built on it


class Pmix(Launcher):
    """prterun, or any launcher with PMIx."""

    title = "PMIx"
    order = 20
    prefixes = ("PMIX_", "PRTE_")
    programs = ("prterun", "prted")

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read PMIx' variables; None when this process is not a client of PMIx. The size is 0: it comes from MPI.

        Raises:
            EnvironmentMismatchError: One of the two is missing, or the rank is not a number.
        """
        if RANK not in environ and NAMESPACE not in environ:
            return None
        rank = environ.get(RANK, "")
        if not is_number(rank) or NAMESPACE not in environ:
            raise EnvironmentMismatchError(
                f"only some of PMIx' variables are set: {RANK}={rank or 'not set'}, {NAMESPACE}="
                f"{environ.get(NAMESPACE, 'not set')}; start the ranks with a PMIx launcher, or unset them"
            )
        return LauncherInfo(
            launcher=self.title,
            rank=int(rank),
            size=0,
            local_rank=None,
            local_size=None,
            run_id=f"pmix-{environ[NAMESPACE]}",
            evidence=evidence(environ, RANK, NAMESPACE),
        )

    @override
    def is_protocol_only(self, environ: Mapping[str, str]) -> bool:
        """Return whether the launcher is not prterun. (Open MPI 5, which uses prterun, sets variables of its own.)"""
        return DAEMON not in environ or "OMPI_COMM_WORLD_RANK" in environ
