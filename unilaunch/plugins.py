"""Backends, models and commands by entry point: what we ship comes through the same door as a third party's."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import cast

from unilaunch import entry_points
from unilaunch.backend import Backend
from unilaunch.command import Command
from unilaunch.errors import PluginError
from unilaunch.model import Model

_BACKENDS = (entry_points.BACKENDS, "backend")
_MODELS = (entry_points.MODELS, "model")
_COMMANDS = (entry_points.COMMANDS, "command")


def models() -> dict[str, Model]:
    """Return every installed model by name."""
    return entry_points.make_all(*_MODELS)


def load_model(name: str) -> Model:
    """Return the model *name*.

    Raises:
        PluginError: It is not installed.
    """
    return cast("Model", entry_points.make(*_MODELS, name))


def commands() -> dict[str, Command]:
    """Return every command that a plug-in adds, by name."""
    return entry_points.make_all(*_COMMANDS)


def backends() -> list[Backend]:
    """Return every backend, those that "auto" prefers first, whether or not its framework is installed."""
    loaded: dict[str, Backend] = entry_points.make_all(*_BACKENDS)
    return sorted(loaded.values(), key=lambda backend: backend.order)


def usable_backends() -> Iterator[Backend]:
    """Give every backend whose framework is installed, in the order in which they are preferred."""
    return (backend for backend in backends() if find_spec(backend.framework))


def load_backend(name: str, *, here: bool = True) -> Backend:
    """Return the backend *name*, or with "auto" the first whose framework is installed; imports no framework.

    Args:
        name: The backend's name, or "auto".
        here: The framework of a backend that is named must be installed on this machine.

    Raises:
        PluginError: There is none of that name, or its framework is not installed.
    """
    if name == "auto":
        for backend in usable_backends():
            return backend
        ways = " or ".join(backend.install for backend in backends())
        raise PluginError(f"no framework is installed: {ways or 'and no backend either'}")
    backend = cast("Backend", entry_points.make(*_BACKENDS, name))
    if here and find_spec(backend.framework) is None:
        raise PluginError(f"backend {name!r} needs its framework: {backend.install}")
    return backend


def backends_of_program(name: str, *, here: bool = True) -> tuple[Backend, ...]:
    """Return the frameworks that a program may find: *name*, or with "auto" every one that is installed.

    Args:
        name: The backend's name, or "auto".
        here: The frameworks must be installed on this machine.

    Raises:
        PluginError: There is none of that name, or its framework is not installed.
    """
    if name == "auto":
        return tuple(usable_backends() if here else backends())
    return (load_backend(name, here=here),)
