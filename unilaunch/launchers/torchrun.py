"""torchrun, and torch.distributed's variables that a user has set by hand."""

from collections.abc import Collection, Mapping

from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.launcher import Launcher
from unilaunch.overriding import override
from unilaunch.record import replace
from unilaunch.spec.variables import KEY

RANK = "RANK"
SIZE = "WORLD_SIZE"
LOCAL_RANK = "LOCAL_RANK"
LOCAL_SIZE = "LOCAL_WORLD_SIZE"
ADDRESS = "MASTER_ADDR"
PORT = "MASTER_PORT"
RUN = "TORCHELASTIC_RUN_ID"
RESTART = "TORCHELASTIC_RESTART_COUNT"
THREADS = "OMP_NUM_THREADS"
BY_HAND = (RANK, SIZE, ADDRESS, PORT)


class Torchrun(Launcher):
    """torchrun, and variables that were set by hand."""

    title = "torchrun"
    order = 70
    sizes = (SIZE,)
    scripts = (
        "torchrun", "torch.distributed.run", "torch.distributed.launch",
        "accelerate", "accelerate-launch", "accelerate.commands.launch",  # torchrun inside of their own process
        "deepspeed.launcher.launch",
    )  # fmt: skip

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read torchrun's variables; None when this process was not started by it.

        With several agents the local rank is left to the ranks: two agents can be on one machine.
        The restarts are not in the run's name: each agent counts those that its own ranks have caused.
        """
        if RUN not in environ:
            return self._by_hand(environ)
        found = self.describe(
            environ, (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE), (ADDRESS, PORT, RUN, RESTART),
            run_id=f"torchrun-{environ[RUN]}-{environ.get(ADDRESS, '')}-{environ.get(PORT, '')}",
            mpi=False,
            rank_0_hosts=[environ.get(ADDRESS, "")],
        )  # fmt: skip
        return found if found.local_size == found.size else replace(found, local_rank=None, local_size=None)

    def _by_hand(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Ranks that were started one by one, each with all that torch.distributed's `env://` needs.

        A single one counts only in a job file, which gives it a key: others set such variables for a script.
        """
        if not all(name in environ for name in BY_HAND) or (environ[SIZE] == "1" and KEY not in environ):
            return None
        return self.describe(
            environ, (RANK, SIZE), (ADDRESS, PORT), title="torch.distributed", launcher="torch.distributed's variables",
            run_id=f"env-{environ[ADDRESS]}-{environ[PORT]}", mpi=False,
            patient=True,  # a program that starts ranks one by one (the kubelet of a JobSet) sends SIGTERM to stop them
            rank_0_hosts=(environ[ADDRESS],),
        )  # fmt: skip

    @override
    def exports(self, environ: Mapping[str, str]) -> Collection[str]:
        """Return the address of torchrun's store, and torchrun's other variables.

        For several ranks of a host it sets OMP_NUM_THREADS=1, unless the user has exported a number.
        """
        if RUN not in environ:
            return ()
        own = {ADDRESS, PORT} | ({THREADS} if environ.get(THREADS) == "1" != environ.get(LOCAL_SIZE) else set())
        return [name for name in environ if name in own or name.startswith(("TORCHELASTIC_", "ROLE_"))]
