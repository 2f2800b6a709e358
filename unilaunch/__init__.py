"""One launch spec, any MPI, either framework.

Importing this package imports no framework, no numpy and no mpi4py; the public names are resolved when they are used.
"""

from typing import TYPE_CHECKING

from unilaunch.version import __version__

if TYPE_CHECKING:
    from unilaunch.backend import Backend
    from unilaunch.command import Command
    from unilaunch.errors import UnilaunchError
    from unilaunch.job.api import launch
    from unilaunch.job.emit import JobFile
    from unilaunch.launch_spec import LaunchSpec, MpiSpec
    from unilaunch.launchers.launcher import Launcher
    from unilaunch.launchers.mpirun import Mpirun
    from unilaunch.model import Model, Session
    from unilaunch.output.result import LaunchResult, RankResult
    from unilaunch.rank.current import init
    from unilaunch.spec import RunSpec, Spec
    from unilaunch.world import LauncherInfo, World

__all__ = [
    "Backend", "Command", "JobFile", "LaunchResult", "LaunchSpec", "Launcher", "LauncherInfo", "Model", "MpiSpec",
    "Mpirun", "RankResult", "RunSpec", "Session", "Spec", "UnilaunchError", "World", "__version__", "init", "launch",
]  # fmt: skip

_HOMES = {
    "Backend": "unilaunch.backend",
    "Command": "unilaunch.command",
    "JobFile": "unilaunch.job.emit",
    "LaunchResult": "unilaunch.output.result",
    "LaunchSpec": "unilaunch.launch_spec",
    "Launcher": "unilaunch.launchers.launcher",
    "LauncherInfo": "unilaunch.world",
    "Model": "unilaunch.model",
    "MpiSpec": "unilaunch.launch_spec",
    "Mpirun": "unilaunch.launchers.mpirun",
    "RankResult": "unilaunch.output.result",
    "RunSpec": "unilaunch.spec",
    "Session": "unilaunch.model",
    "Spec": "unilaunch.spec",
    "UnilaunchError": "unilaunch.errors",
    "World": "unilaunch.world",
    "init": "unilaunch.rank.current",
    "launch": "unilaunch.job.api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
