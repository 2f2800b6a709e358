"""Flux: flux run, flux submit."""

from collections.abc import Mapping

from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.launcher import Launcher
from unilaunch.overriding import override

RANK = "FLUX_TASK_RANK"
SIZE = "FLUX_JOB_SIZE"
LOCAL_RANK = "FLUX_TASK_LOCAL_ID"
JOB = "FLUX_JOB_ID"


class Flux(Launcher):
    """flux run."""

    title = "Flux"
    order = 50
    prefixes = ("FLUX_",)
    sizes = (SIZE,)
    programs = ("flux-shell",)

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read Flux's variables; None when this process is no task of a Flux job."""
        if RANK not in environ:
            return None
        run_id = f"flux-{environ[JOB]}" if JOB in environ else ""
        return self.describe(environ, (RANK, SIZE, LOCAL_RANK), [JOB], run_id=run_id)
