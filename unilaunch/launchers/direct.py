"""`unilaunch launch` itself: it starts the ranks of a host without an mpirun, by the agent of that host."""

from collections.abc import Mapping

from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.launcher import Launcher
from unilaunch.overriding import override
from unilaunch.record import Record

RANK = "_UNILAUNCH_RANK"  # "3"
SIZE = "_UNILAUNCH_SIZE"  # "8"
LOCAL_RANK = "_UNILAUNCH_LOCAL_RANK"  # "3"
LOCAL_SIZE = "_UNILAUNCH_LOCAL_SIZE"  # "8"
RUN = "_UNILAUNCH_RUN"  # "direct-0f2a..."; each start has a new name
NEEDED = (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE)
IDENTITY = (*NEEDED, RUN)
#: Variables with which other launchers give a process its identity, or a server to talk to: an MPI library that is
#: loaded in a rank would take the rank for a process of that launcher.
_OTHERS = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "SLURM_PROCID", "SLURM_LOCALID")


class Direct(Launcher):
    """A direct start."""

    title = "unilaunch launch"
    order = 0
    scripts = ("unilaunch",)

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read what the agent has set for this rank; None if this process is no rank of a direct start."""
        if RANK not in environ:
            return None
        several = environ.get(LOCAL_SIZE) != environ.get(SIZE)  # nodes can be one machine: the ranks count its ranks
        return self.describe(
            environ, NEEDED[:2] if several else NEEDED, (RUN,), run_id=environ.get(RUN, ""), mpi=False,
        )  # fmt: skip


class Share(Record):
    """The ranks of one host.

    Attributes:
        first: The first of them; the others follow it.
        ranks: Their number.
        size: Number of the ranks of all hosts.
        run: A name of this start that all hosts have, and no other start.
    """

    first: int
    ranks: int
    size: int
    run: str


def rank_environment(environ: Mapping[str, str], share: Share, local_rank: int) -> dict[str, str]:
    """Return the environment of one rank.

    Args:
        environ: The agent's environment.
        share: The ranks of this host.
        local_rank: Which of them this one is, from 0.
    """
    numbers = {RANK: share.first + local_rank, SIZE: share.size, LOCAL_RANK: local_rank, LOCAL_SIZE: share.ranks}
    identity = {name: str(number) for name, number in numbers.items()} | {RUN: share.run}
    return {name: value for name, value in environ.items() if not name.startswith(_OTHERS)} | identity
