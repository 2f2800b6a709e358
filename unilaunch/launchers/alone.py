"""No launcher: a world of one rank. If a variable says that there are several ranks, the process is refused."""

import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.world import LauncherInfo

if TYPE_CHECKING:
    from unilaunch.launchers.launcher import Launcher


def only_rank(environ: Mapping[str, str], launchers: "Iterable[Launcher]") -> LauncherInfo:
    """Return a world of one rank.

    Args:
        environ: The process's environment.
        launchers: Those that may have started this process.

    Raises:
        EnvironmentMismatchError: A variable says that there are more ranks.
    """
    for title, name in ((launcher.title, name) for launcher in launchers for name in launcher.sizes):
        if environ.get(name, "1") not in {"0", "1"}:
            raise EnvironmentMismatchError(
                f"{name}={environ[name]} says that there are {environ[name]} ranks, as {title} sets it, and what else "
                f"it would set is missing: start the ranks with a launcher (see unilaunch explain), or unset {name}"
            )
    run_id = f"alone-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return LauncherInfo(
        launcher="none", rank=0, size=1, local_rank=0, local_size=1, run_id=run_id, evidence={}, mpi=False
    )
