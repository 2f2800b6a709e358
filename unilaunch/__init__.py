"""Start jobs of PyTorch or MindSpore on many ranks, with any launcher. This core depends on no framework and no model.

Begin with `docs/architecture.md`, then read `cli.py`, `rank/run.py` and `job/plan.py`. Importing this package imports
no framework, no numpy and no mpi4py; the public names are resolved when they are used.
"""

from typing import TYPE_CHECKING

from unilaunch.version import __version__

if TYPE_CHECKING:
    from unilaunch.backend import Backend, Collectives, Exchange, Peers, Placement, Rendezvous
    from unilaunch.command import Command
    from unilaunch.errors import (
        DivergedError,
        EnvironmentMismatchError,
        InputError,
        LauncherError,
        MonitorError,
        OutputError,
        PeerLostError,
        PlacementError,
        PluginError,
        RefusedTogetherError,
        RendezvousError,
        SpecError,
        StoppedError,
        UnilaunchError,
    )
    from unilaunch.hostfile import HostfileError
    from unilaunch.job.api import launch, start
    from unilaunch.job.emit import JobFile
    from unilaunch.job.handle import Job, JobStatus, RankStatus
    from unilaunch.launch_spec import LaunchSpec, MpiSpec
    from unilaunch.launchers.launcher import Launcher
    from unilaunch.launchers.mpirun import Mpirun, Request
    from unilaunch.logs.lines import LogLine
    from unilaunch.model import Framework, Model, Session
    from unilaunch.monitor.rank_seen import RankState
    from unilaunch.output.failure import Cause, Failure
    from unilaunch.output.result import JobFailed, LaunchResult, RankResult
    from unilaunch.rank.current import init
    from unilaunch.report_layout import ReportLayout
    from unilaunch.spec import RunSpec, Spec
    from unilaunch.step import Step
    from unilaunch.world import LauncherInfo, World

__all__ = [
    "Backend", "Cause", "Collectives", "Command", "DivergedError", "EnvironmentMismatchError", "Exchange", "Failure",
    "Framework", "HostfileError", "InputError", "Job", "JobFailed", "JobFile", "JobStatus", "LaunchResult",
    "LaunchSpec", "Launcher", "LauncherError", "LauncherInfo", "LogLine", "Model", "MonitorError", "MpiSpec", "Mpirun",
    "OutputError", "PeerLostError", "Peers", "Placement", "PlacementError", "PluginError", "RankResult", "RankState",
    "RankStatus", "RefusedTogetherError", "Rendezvous", "RendezvousError", "ReportLayout", "Request", "RunSpec",
    "Session", "Spec", "SpecError", "Step", "StoppedError", "UnilaunchError", "World", "__version__", "init", "launch",
    "start",
]  # fmt: skip

#: The public names of each module.
_NAMES = {
    "backend": "Backend Collectives Exchange Peers Placement Rendezvous",
    "command": "Command",
    "errors": """
        DivergedError EnvironmentMismatchError InputError LauncherError MonitorError OutputError
        PeerLostError PlacementError PluginError RefusedTogetherError RendezvousError SpecError StoppedError
        UnilaunchError
    """,
    "hostfile": "HostfileError",
    "job.api": "launch start",
    "job.emit": "JobFile",
    "job.handle": "Job JobStatus RankStatus",
    "launch_spec": "LaunchSpec MpiSpec",
    "launchers.launcher": "Launcher",
    "launchers.mpirun": "Mpirun Request",
    "logs.lines": "LogLine",
    "model": "Framework Model Session",
    "monitor.rank_seen": "RankState",
    "output.failure": "Cause Failure",
    "output.result": "JobFailed LaunchResult RankResult",
    "rank.current": "init",
    "report_layout": "ReportLayout",
    "spec": "RunSpec Spec",
    "step": "Step",
    "world": "LauncherInfo World",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
