"""Import the framework of all ranks only once, in the process from which the ranks are forked."""

import ast
import importlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unilaunch.interfaces import plugins
from unilaunch.interfaces.backend import Backend
from unilaunch.machine.devices import visible_devices
from unilaunch.rank.framework_env import THREADS
from unilaunch.rank.interpreter import uncollected
from unilaunch.spec.mpi_programs import source_files
from unilaunch.spec.target import Target, read_target
from unilaunch.spec.task import Task

if TYPE_CHECKING:
    from unilaunch.spec.run_spec import RunSpec

#: Variables that make an import depend on the process: on its CPUs, or on the rank that a log file is named after.
_OF_A_PROCESS = (
    "OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET", "GLOG_log_dir",
)  # fmt: skip
#: Packages that the frameworks import too.
_HARMLESS = {*sys.stdlib_module_names, "numpy"}


def preload_likely(text: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Import what the ranks will most likely need, while `launch` still plans; return as `preload`."""
    models = plugins.names(plugins.MODELS)
    if text in models:
        return None
    target = read_target(text, models)
    return _import(_first_backend(target, plugins.usable_backends()), target, (), environ, may_use_devices=True)


def preload(task: "Task[RunSpec]", environ: Mapping[str, str]) -> dict[str, str] | None:
    """Import on CPU the framework for all ranks; return the variables that the import has set.

    Every rank imports the framework by itself where a device is visible, since the state of a driver's library may not
    survive a fork, and where a variable makes the import depend on the process. None is returned then.
    """
    backend = task.backends[0] if task.model else _first_backend(task.target, task.backends)
    modules = task.model.modules(backend.name) if task.model and backend else ()
    target = None if task.model else task.target
    return _import(backend, target, modules, environ, may_use_devices=task.spec.device != "cpu")


def _import(
    backend: Backend | None, target: Target | None, modules: Iterable[str], environ: Mapping[str, str],
    *, may_use_devices: bool,
) -> dict[str, str] | None:  # fmt: skip
    devices = may_use_devices and any(visible_devices(environ).values())
    if not backend or devices or any(name.startswith(_OF_A_PROCESS) for name in environ):
        return None
    # One thread: a thread pool does not survive a fork. After the fork each rank sets its own number of threads.
    wanted = {name: value for name, value in backend.import_variables.items() if name not in environ}
    os.environ.update(dict.fromkeys(THREADS, "1") | wanted)  # noqa: TID251  (the environment of this process)
    if target:
        target.put_folder_first()
    before = dict(os.environ)  # noqa: TID251
    with uncollected():
        for module in (backend.framework, *modules):
            importlib.import_module(module)
    return {name: value for name, value in os.environ.items() if before.get(name) != value}  # noqa: TID251


def _first_backend(target: Target, backends: Iterable[Backend]) -> Backend | None:
    frameworks = {backend.framework: backend for backend in backends}
    return frameworks.get(first_import(target, frameworks) or "")


def first_import(target: Target, frameworks: Collection[str]) -> str | None:
    """Return the framework that a program imports first; None if there is none, or if a statement before may change it.

    A docstring, imports of the standard library and of numpy, and plain constants may come before the import.
    """
    try:
        for file in _files(target):
            for statement in ast.parse(file.read_bytes()).body:
                for name in _imported(statement):
                    if (file.parent / name).exists() or (file.parent / f"{name}.py").exists():
                        return None  # a file beside it has the name of a library: Python decides at run time
                    if name in frameworks:
                        return name
                    if name not in _HARMLESS:
                        return None
    except (OSError, SyntaxError, ValueError):
        pass
    return None


def _imported(statement: ast.stmt) -> Iterator[str]:
    """Return the packages that a statement imports."""
    match statement:
        case ast.Import(names):
            yield from (name.name.partition(".")[0] for name in names)
        case ast.ImportFrom(module=str(module), level=0):
            yield module.partition(".")[0]
        case ast.Expr(ast.Constant()) | ast.Assign(value=ast.Constant(), targets=[ast.Name()]):
            pass
        case _:
            raise ValueError("a statement whose effect is unknown")


def _files(target: Target) -> list[Path]:
    """Return the files that Python executes for *target*, in their order."""
    if target.file or target.source:
        return [target.file] if target.file else []
    path = [str(Path.cwd()), *sys.path[1:]]
    return source_files(target.name.partition(":")[0], path, is_main=target.kind == "module")
