"""One launch spec, any MPI, either framework.

Importing this package imports no framework, no numpy and no mpi4py; the public names are resolved when they are used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unilaunch.spec import RunSpec
    from unilaunch.world import World

__all__ = ["RunSpec", "World", "__version__"]
__version__ = "0.1.0"

_HOMES = {"RunSpec": "unilaunch.spec", "World": "unilaunch.world"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
