"""What every rank of a job imports, imported once, in the process that they are forked from."""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from unilaunch.agent.first_import import first_import
from unilaunch.backend import Backend
from unilaunch.devices import visible_devices
from unilaunch.launchers import detect
from unilaunch.rank.framework_env import THREADS
from unilaunch.rank.garbage_collector import uncollected
from unilaunch.task import Task

if TYPE_CHECKING:
    from unilaunch.spec import RunSpec

#: What an agent and its ranks begin with.
_OURS = ("unilaunch.agent.agent", "unilaunch.rank.run")


def preload(task: "Task[RunSpec]", environ: Mapping[str, str]) -> dict[str, str] | None:
    """Import unilaunch, and on CPU the framework too, for all ranks; None if each rank is to import by itself.

    Returns the variables that the import has set.

    On devices every rank imports it by itself: what a driver's library does at its import need not survive a fork.

    Args:
        task: What the ranks are to do.
        environ: The process's environment.

    Raises:
        UnilaunchError: The task does not fit the number of ranks.
    """
    if not task.spec.share_import:
        return None
    task.check(detect(environ).size)  # what is refused is refused before a framework is imported
    for module in _OURS:
        importlib.import_module(module)
    backend = _first_backend(task)
    if not backend or (task.spec.device != "cpu" and any(visible_devices(environ).values())):
        return {}
    # One thread: a pool does not come along into what is forked, and there a rank takes as many as it is to have.
    wanted = {name: value for name, value in backend.import_variables.items() if name not in environ}
    os.environ.update(dict.fromkeys(THREADS, "1") | wanted)  # noqa: TID251  (this process's own)
    if not task.model:
        sys.path[0] = str(task.target.folder)
    before = dict(os.environ)  # noqa: TID251
    with uncollected():
        importlib.import_module(backend.framework)
        for module in task.model.modules(backend.name) if task.model else ():
            importlib.import_module(module)
    return {name: value for name, value in os.environ.items() if before.get(name) != value}  # noqa: TID251


def _first_backend(task: "Task[RunSpec]") -> Backend | None:
    if task.model:
        return task.backends[0]
    frameworks = {backend.framework: backend for backend in task.backends}
    return frameworks.get(first_import(task.target, frameworks) or "")
