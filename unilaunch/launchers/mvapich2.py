"""MVAPICH2: mpirun_rsh."""

from collections.abc import Mapping

from unilaunch.launchers.launcher import Launcher, override
from unilaunch.launchers.reading import describe
from unilaunch.world import LauncherInfo

RANK = "MV2_COMM_WORLD_RANK"
SIZE = "MV2_COMM_WORLD_SIZE"
LOCAL_RANK = "MV2_COMM_WORLD_LOCAL_RANK"
LOCAL_SIZE = "MV2_COMM_WORLD_LOCAL_SIZE"
NEEDED = (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE)


class Mvapich2(Launcher):
    """mpirun_rsh."""

    title = "MVAPICH2"
    order = 30
    prefixes = ("MV2_",)
    programs = ("mpirun_rsh", "mpispawn")
    libraries = ("libmpi.so.12",)

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read MVAPICH2's variables; None when this process was not started by it.

        Raises:
            EnvironmentMismatchError: Some of the variables are missing, or one has an invalid value.
        """
        if not any(name in environ for name in NEEDED):
            return None
        return describe(environ, self.title, NEEDED)
