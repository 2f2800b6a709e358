"""Plug-ins, found by the entry points of installed distributions: those of unilaunch and of third parties.

The result is that of importlib.metadata, but reading takes 2 ms instead of 20: every child of a launcher first needs
the entry points of the launchers. A rank under `launch` reads no files: `launch` passes it the table.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from unilaunch.errors import PluginError, one_line

if TYPE_CHECKING:
    from unilaunch.interfaces.backend import Backend
    from unilaunch.interfaces.command import Command
    from unilaunch.interfaces.model import Model
    from unilaunch.interfaces.observer import Observer

Table = Mapping[str, Mapping[str, str]]


class Group(NamedTuple):
    """A group of entry points: its name, and what its members are, for messages."""

    name: str
    kind: str


LAUNCHERS = Group("unilaunch.launchers", "launcher")
BACKENDS = Group("unilaunch.backends", "backend")
MODELS = Group("unilaunch.models", "model")
COMMANDS = Group("unilaunch.commands", "command")
JOB_FILES = Group("unilaunch.jobfiles", "job file")
OBSERVERS = Group("unilaunch.observers", "observer")
_PREFIX = "unilaunch."
#: Group, name and "module:object"; filled at the first use, or by `use_table`.
_table: dict[str, Mapping[str, str]] = {}


def models() -> "dict[str, Model]":
    """Return every installed model by name."""
    return make_all(MODELS)


def named_models(text: str = "") -> list[str]:
    """Return the names of the models that *text* can choose; an internal model only if *text* is its name."""
    return [name for name, model in models().items() if not model.is_internal or name == text]


def load_model(name: str) -> "Model":
    """Return the model *name*.

    Raises:
        PluginError: The model is not installed.
    """
    return cast("Model", make(MODELS, name))


def commands() -> "dict[str, Command]":
    """Return every command that a plug-in adds, by name."""
    return make_all(COMMANDS)


def load_observer(name: str) -> "Observer":
    """Return the observer *name*.

    Raises:
        PluginError: The observer is not installed.
    """
    return cast("Observer", make(OBSERVERS, name))


def backends() -> "list[Backend]":
    """Return every backend in the order in which "auto" prefers them, even if its framework is not installed."""
    loaded: dict[str, Backend] = make_all(BACKENDS)
    return sorted(loaded.values(), key=lambda backend: backend.order)


def usable_backends() -> "Iterator[Backend]":
    """Yield every backend whose framework is installed, in the order in which "auto" prefers them."""
    return (backend for backend in backends() if find_spec(backend.framework))


def load_backend(name: str, *, here: bool = True) -> "Backend":
    """Return the backend *name*, or with "auto" the first whose framework is installed; no framework is imported.

    Args:
        name: The backend's name, or "auto".
        here: Whether the framework of a named backend must be installed on this machine.

    Raises:
        PluginError: There is none of that name, or its framework is not installed.
    """
    if name == "auto":
        for backend in usable_backends():
            return backend
        ways = " or ".join(backend.install for backend in backends())
        raise PluginError(f"no framework is installed: {ways or 'and no backend either'}")
    backend = cast("Backend", make(BACKENDS, name))
    if here and find_spec(backend.framework) is None:
        raise PluginError(f"backend {name!r} needs its framework: {backend.install}")
    return backend


def backends_of_program(name: str, *, here: bool = True) -> "tuple[Backend, ...]":
    """Return the backends whose framework a program may import: *name*, or with "auto" all that are installed.

    Args:
        name: The backend's name, or "auto".
        here: Whether the frameworks must be installed on this machine.

    Raises:
        PluginError: There is none of that name, or its framework is not installed.
    """
    if name == "auto":
        return tuple(usable_backends() if here else backends())
    return (load_backend(name, here=here),)


def table() -> Table:
    """Return every entry point: "module:object" by group and name."""
    if not _table:
        _table.update(scan(sys.path))
    return _table


def use_table(told: Table) -> None:
    """Use the table that `launch` has read, and read no files."""
    _table.clear()
    _table.update(told)


def names(group: Group) -> list[str]:
    """Return the names of a group, sorted; imports nothing."""
    return sorted(table().get(group.name, {}))


def make(group: Group, name: str) -> Any:
    """Return an instance of the class that the entry point *name* names.

    Raises:
        PluginError: There is no such entry point, or it cannot be loaded.
    """
    installed = table().get(group.name, {})
    if name not in installed:
        raise PluginError(f"no {group.kind} {name!r}; installed: {', '.join(names(group)) or 'none'}")
    try:
        return _load(installed[name])()
    except Exception as error:  # a plug-in may raise any exception
        fault = f"{group.kind} {name!r} ({installed[name]}) cannot be loaded: {type(error).__name__}: {error}"
        raise PluginError(fault) from error


@cache
def make_all(group: Group) -> dict[str, Any]:
    """Return an instance of each member of a group, by name; omit one that cannot be loaded, and print that once."""
    made = {}
    for name in names(group):
        try:
            made[name] = make(group, name)
        except PluginError as error:
            print(f"unilaunch: left out: {one_line(str(error))}", file=sys.stderr)  # noqa: T201
    return made


def _load(value: str) -> Any:
    module, _, path = value.partition("[")[0].strip().partition(":")
    return reduce(getattr, path.split("."), import_module(module))


def scan(folders: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return unilaunch's entry points of the distributions in *folders*; of equal names the first one is used."""
    found: dict[str, dict[str, str]] = {}
    seen = set()
    for folder in folders:
        for info in _distributions(folder):
            name = re.sub(r"[-_.]+", "-", info.stem.partition("-")[0]).lower()
            if name not in seen:
                seen.add(name)
                for group, entry, value in _read(info / "entry_points.txt"):
                    found.setdefault(group, {}).setdefault(entry, value)
    return found


def _distributions(folder: str) -> list[Path]:
    try:
        files = sorted(os.listdir(folder or "."))  # noqa: PTH208  (of names only: a folder may hold thousands)
    except OSError:  # no folder, or a zip file
        return []
    return [Path(folder, name) for name in files if name.endswith((".dist-info", ".egg-info"))]


def _read(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield group, name and value of each entry point of unilaunch in a file; nothing if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[] ")
        elif group.startswith(_PREFIX) and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield group, name.strip(), value.strip()
