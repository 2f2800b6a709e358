"""msrun, the launcher of MindSpore."""

from collections.abc import Mapping

from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.launcher import Launcher
from unilaunch.overriding import override

ROLE = "MS_ROLE"
RANKS = ("RANK_ID", "MS_NODE_ID")  # "1"; only the second is set where a cluster is set up without msrun
SIZE = "MS_WORKER_NUM"
ADDRESS = "MS_SCHED_HOST"
PORT = "MS_SCHED_PORT"
WORKER = "MS_WORKER"
SCHEDULER = "MS_SCHED"


class Msrun(Launcher):
    """msrun."""

    title = "msrun"
    order = 80
    sizes = (SIZE,)
    scripts = ("msrun",)

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read msrun's variables; None when this process is not a worker of msrun."""
        if environ.get(ROLE) != WORKER:
            return None
        rank = next((name for name in RANKS if name in environ), RANKS[0])
        return self.describe(
            environ, (rank, SIZE), (ROLE, ADDRESS, PORT),
            run_id=f"msrun-{environ.get(ADDRESS, '')}-{environ.get(PORT, '')}",
            mpi=False,
            rank_0_hosts=[environ.get(ADDRESS, "")],
        )  # fmt: skip

    @override
    def is_helper(self, environ: Mapping[str, str]) -> bool:
        """Return whether this process is MindSpore's scheduler."""
        return environ.get(ROLE) == SCHEDULER
