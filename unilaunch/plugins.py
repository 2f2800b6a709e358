"""Backends, models and commands by entry point: what we ship comes through the same door as a third party's."""

import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, cast

from unilaunch.backend import Backend
from unilaunch.command import Command
from unilaunch.errors import PluginError, one_line
from unilaunch.model import Model

BACKENDS = "unilaunch.backends"
MODELS = "unilaunch.models"
COMMANDS = "unilaunch.commands"
#: What "auto" takes first.
PREFERRED = ("torch",)


@cache
def _all_installed() -> Any:  # EntryPoints; before Python 3.12 what selects as they do
    return entry_points()  # reads every installed package's, whatever the group: once


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in _all_installed().select(group=group)}


def _load(group: str, kind: str, name: str) -> Any:
    installed = _installed(group)
    if name not in installed:
        raise PluginError(f"no {kind} {name!r}; installed: {', '.join(sorted(installed)) or 'none'}")
    try:
        return installed[name].load()()
    except Exception as error:  # a plug-in is another's code: it may raise anything
        where = installed[name].value
        raise PluginError(f"{kind} {name!r} ({where}) cannot be loaded: {type(error).__name__}: {error}") from error


@cache
def _load_all(group: str, kind: str) -> dict[str, Any]:
    """Return all that can be loaded, by name; one that cannot is left out, and said once."""
    loaded = {}
    for name in sorted(_installed(group)):
        try:
            loaded[name] = _load(group, kind, name)
        except PluginError as error:
            print(f"unilaunch: left out: {one_line(str(error))}", file=sys.stderr)  # noqa: T201
    return loaded


def models() -> dict[str, Model]:
    """Return every installed model by name."""
    return _load_all(MODELS, "model")


def load_model(name: str) -> Model:
    """Return the model *name*.

    Raises:
        PluginError: It is not installed.
    """
    return cast("Model", _load(MODELS, "model", name))


def commands() -> dict[str, Command]:
    """Return every command that a plug-in adds, by name."""
    return _load_all(COMMANDS, "command")


def usable_backends() -> Iterator[Backend]:
    """Give every backend whose framework is installed, in the order in which they are preferred."""
    names = sorted(_installed(BACKENDS), key=lambda name: (name not in PREFERRED, name))
    loaded: dict[str, Backend] = _load_all(BACKENDS, "backend")
    for name in names:
        if name in loaded and find_spec(loaded[name].framework):
            yield loaded[name]


def load_backend(name: str) -> Backend:
    """Return the backend *name*, or with "auto" the first whose framework is installed; imports no framework.

    Raises:
        PluginError: There is none of that name, or its framework is not installed.
    """
    if name == "auto":
        for backend in usable_backends():
            return backend
        raise PluginError("no framework is installed: pip install 'unilaunch[torch]' or 'unilaunch[mindspore]'")
    backend = cast("Backend", _load(BACKENDS, "backend", name))
    if find_spec(backend.framework) is None:
        raise PluginError(f"backend {name!r} needs its framework: pip install 'unilaunch[{name}]'")
    return backend


def backends_of_program(name: str) -> tuple[Backend, ...]:
    """Return the frameworks that a program may find: *name*, or with "auto" every one that is installed.

    Raises:
        PluginError: There is none of that name, or its framework is not installed.
    """
    return tuple(usable_backends()) if name == "auto" else (load_backend(name),)
