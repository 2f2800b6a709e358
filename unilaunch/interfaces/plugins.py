"""Backends, models, commands and observers, found by their entry points: those of unilaunch and of third parties."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import cast

from unilaunch.errors import PluginError
from unilaunch.interfaces import entry_points
from unilaunch.interfaces.backend import Backend
from unilaunch.interfaces.command import Command
from unilaunch.interfaces.model import Model
from unilaunch.interfaces.observer import Observer

_BACKENDS = (entry_points.BACKENDS, "backend")
_MODELS = (entry_points.MODELS, "model")
_COMMANDS = (entry_points.COMMANDS, "command")


def models() -> dict[str, Model]:
    """Return every installed model by name."""
    return entry_points.make_all(*_MODELS)


def named_models(text: str = "") -> list[str]:
    """Return the names of the models that *text* can choose; an internal model only if *text* is its name."""
    return [name for name, model in models().items() if not model.is_internal or name == text]


def load_model(name: str) -> Model:
    """Return the model *name*.

    Raises:
        PluginError: The model is not installed.
    """
    return cast("Model", entry_points.make(*_MODELS, name))


def commands() -> dict[str, Command]:
    """Return every command that a plug-in adds, by name."""
    return entry_points.make_all(*_COMMANDS)


def load_observer(name: str) -> Observer:
    """Return the observer *name*.

    Raises:
        PluginError: The observer is not installed.
    """
    return cast("Observer", entry_points.make(entry_points.OBSERVERS, "observer", name))


def backends() -> list[Backend]:
    """Return every backend in the order in which "auto" prefers them, even if its framework is not installed."""
    loaded: dict[str, Backend] = entry_points.make_all(*_BACKENDS)
    return sorted(loaded.values(), key=lambda backend: backend.order)


def usable_backends() -> Iterator[Backend]:
    """Yield every backend whose framework is installed, in the order in which "auto" prefers them."""
    return (backend for backend in backends() if find_spec(backend.framework))


def load_backend(name: str, *, here: bool = True) -> Backend:
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
    backend = cast("Backend", entry_points.make(*_BACKENDS, name))
    if here and find_spec(backend.framework) is None:
        raise PluginError(f"backend {name!r} needs its framework: {backend.install}")
    return backend


def backends_of_program(name: str, *, here: bool = True) -> tuple[Backend, ...]:
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
