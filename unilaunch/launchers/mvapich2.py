"""MVAPICH2, and MVAPICH 3 and 4: mpirun_rsh."""

from collections.abc import Mapping

from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.launcher import Launcher
from unilaunch.overriding import override

#: How the variables begin, by version.
VERSIONS = {"MVAPICH": "MVP_COMM_WORLD_", "MVAPICH2": "MV2_COMM_WORLD_"}
NEEDED = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")


class Mvapich2(Launcher):
    """mpirun_rsh."""

    title = "MVAPICH2"
    order = 30
    prefixes = ("MVP_", "MV2_")
    programs = ("mpirun_rsh", "mpispawn")
    libraries = ("libmpi.so.12",)

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read MVAPICH's variables; None when this process was not started by it."""
        for version, prefix in VERSIONS.items():
            names = [prefix + name for name in NEEDED]
            if any(name in environ for name in names):
                return self.describe(environ, names, title=version)
        return None
