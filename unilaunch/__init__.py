"""Start jobs of PyTorch or MindSpore on many ranks, with any launcher. This core depends on no framework and no model.

Begin with `docs/architecture.md`, then read `cli.py`, `rank/run.py` and `job/plan.py`. Importing this package imports
no framework, no numpy and no mpi4py; the public names are resolved when they are used.
"""

from typing import TYPE_CHECKING

from unilaunch.version import __version__

if TYPE_CHECKING:
    from unilaunch.errors import (
        DivergedError,
        EnvironmentMismatchError,
        InputError,
        LauncherError,
        MixedCallsError,
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
    from unilaunch.folder.failure import Cause, Failure
    from unilaunch.folder.result import JobFailed, LaunchResult, RankResult
    from unilaunch.interfaces.backend import Backend, Collectives, Exchange, Peers, Placement, Rendezvous
    from unilaunch.interfaces.command import Command
    from unilaunch.interfaces.model import Framework, Model, Session
    from unilaunch.interfaces.observer import Observed, Observer
    from unilaunch.interfaces.report_layout import ReportLayout
    from unilaunch.interfaces.step import Step
    from unilaunch.interfaces.world import LauncherInfo, Store, World
    from unilaunch.job.api import Job, JobStatus, RankStatus, launch, start
    from unilaunch.job.plan import Plan
    from unilaunch.jobfiles import JobFile
    from unilaunch.launchers.launcher import Launcher
    from unilaunch.launchers.mpirun import Mpirun, Request, Starter
    from unilaunch.look.lines import LogLine
    from unilaunch.monitor.inbox import RankState
    from unilaunch.rank.current import init
    from unilaunch.spec.hostfile import HostfileError
    from unilaunch.spec.launch_spec import LaunchSpec, MpiSpec
    from unilaunch.spec.run_spec import RunSpec, Spec

__all__ = [
    "Backend", "Cause", "Collectives", "Command", "DivergedError", "EnvironmentMismatchError", "Exchange", "Failure",
    "Framework", "HostfileError", "InputError", "Job", "JobFailed", "JobFile", "JobStatus", "LaunchResult",
    "LaunchSpec", "Launcher", "LauncherError", "LauncherInfo", "LogLine", "MixedCallsError", "Model", "MonitorError",
    "MpiSpec", "Mpirun", "Observed", "Observer", "OutputError", "PeerLostError", "Peers", "Placement",
    "PlacementError", "Plan", "PluginError", "RankResult", "RankState", "RankStatus", "RefusedTogetherError",
    "Rendezvous", "RendezvousError", "ReportLayout", "Request", "RunSpec", "Session", "Spec", "SpecError", "Starter",
    "Step", "StoppedError", "Store", "UnilaunchError", "World", "__version__", "init", "launch", "start",
]  # fmt: skip

#: The public names of each module.
_NAMES = {
    "interfaces.backend": "Backend Collectives Exchange Peers Placement Rendezvous",
    "interfaces.command": "Command",
    "errors": """
        DivergedError EnvironmentMismatchError InputError LauncherError MixedCallsError MonitorError OutputError
        PeerLostError PlacementError PluginError RefusedTogetherError RendezvousError SpecError StoppedError
        UnilaunchError
    """,
    "spec.hostfile": "HostfileError",
    "job.api": "Job JobStatus RankStatus launch start",
    "job.plan": "Plan",
    "jobfiles": "JobFile",
    "spec.launch_spec": "LaunchSpec MpiSpec",
    "launchers.launcher": "Launcher",
    "launchers.mpirun": "Mpirun Request Starter",
    "look.lines": "LogLine",
    "interfaces.model": "Framework Model Session",
    "monitor.inbox": "RankState",
    "folder.failure": "Cause Failure",
    "folder.result": "JobFailed LaunchResult RankResult",
    "rank.current": "init",
    "interfaces.observer": "Observed Observer",
    "interfaces.report_layout": "ReportLayout",
    "spec.run_spec": "RunSpec Spec",
    "interfaces.step": "Step",
    "interfaces.world": "LauncherInfo Store World",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
