"""Import the modules that every rank needs only once, in the process from which the ranks are forked."""

import importlib
import os
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

#: Modules that an agent and its ranks always import.
_OURS = ("unilaunch.agent.agent", "unilaunch.rank.run")


def preload(task: "Task[RunSpec]", environ: Mapping[str, str]) -> dict[str, str] | None:
    """Import unilaunch and, on CPU, the framework, for all ranks; return None if each rank must import by itself.

    Otherwise return the environment variables that the import has set.

    With a device, every rank imports the framework by itself: the state of a driver's library may not survive a fork.

    Args:
        task: The task of the ranks.
        environ: The process's environment.

    Raises:
        UnilaunchError: The task does not fit the number of ranks.
    """
    if not task.spec.share_import:
        return None
    task.check(detect(environ).size)  # raise before a framework is imported
    for module in _OURS:
        importlib.import_module(module)
    backend = _first_backend(task)
    if not backend or (task.spec.device != "cpu" and any(visible_devices(environ).values())):
        return {}
    # One thread: a thread pool does not survive a fork. After the fork each rank sets its own number of threads.
    wanted = {name: value for name, value in backend.import_variables.items() if name not in environ}
    os.environ.update(dict.fromkeys(THREADS, "1") | wanted)  # noqa: TID251  (the environment of this process)
    if not task.model:
        task.target.put_folder_first()
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
