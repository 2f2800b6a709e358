"""The ranks that a program has connected itself with its framework, where no launcher says that there are several.

`mp.spawn` and `init_process_group`, Ray or a notebook start such ranks. They find each other through the group's store.
"""

import sys
from collections.abc import Callable, Mapping
from functools import cache

from unilaunch import launchers
from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces import plugins
from unilaunch.interfaces.backend import Backend, Group
from unilaunch.interfaces.world import LauncherInfo

Broadcast = Callable[[str, float], str]


def program_group() -> Group | None:
    """Return the group of several ranks that the program has initialised with a framework; None if there is none."""
    for backend in _backends():
        if backend.framework in sys.modules and (group := backend.group()) and group.size > 1:
            return group
    return None


@cache
def _backends() -> list[Backend]:
    return plugins.backends()


def detect(environ: Mapping[str, str]) -> tuple[LauncherInfo, Broadcast | None]:
    """Return the launcher info; if the program's group gives this process's rank, also how the group broadcasts.

    The innermost start counts: a launcher's process that starts several itself is none of their ranks.

    Raises:
        EnvironmentMismatchError: The launcher's variables are incomplete or invalid, and there is no group; or the
            group has more ranks than the launcher, and they cannot find each other through it.
    """
    group = program_group()
    try:
        info = launchers.detect(environ)
    except EnvironmentMismatchError:
        if group is None:
            raise
    else:
        if group is None or not 0 < info.size < group.size:
            return info, None
    if group.broadcast is None:
        raise EnvironmentMismatchError(
            f"{group.title} has a group of {group.size} ranks, and no launcher says so: start them with a launcher "
            f"(unilaunch launch -n {group.size}), by which they find each other"
        )
    own = LauncherInfo(
        launcher=group.title, rank=group.rank, size=group.size, local_rank=None, local_size=None, run_id="",
        evidence={}, mpi=False,
    )  # fmt: skip
    return own, group.broadcast


def refuse_larger_group(rank: int, size: int) -> None:
    """Refuse to go on as rank *rank* of *size* where the program has connected more ranks since.

    Raises:
        EnvironmentMismatchError: It has: each rank of its group would do the work of all.
    """
    if (group := program_group()) and group.size > size:
        raise EnvironmentMismatchError(
            f"{group.title} has a group of {group.size} ranks, and this process went on as rank {rank} of {size} "
            "before the group was initialised: initialise it before ug.load and unilaunch.init()"
        )
