"""Graphs over many ranks: data sets, METIS parts, the halo exchange, and exact operators.

Importing this package imports no framework and no numpy; the public names are resolved when they are used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unilaunch_graph.data.converters import from_edges, from_networkx, from_pyg, from_scipy
    from unilaunch_graph.data.graph_folder import read_names

__all__ = ["from_edges", "from_networkx", "from_pyg", "from_scipy", "read_names"]

_HOMES = {
    "from_edges": "unilaunch_graph.data.converters",
    "from_networkx": "unilaunch_graph.data.converters",
    "from_pyg": "unilaunch_graph.data.converters",
    "from_scipy": "unilaunch_graph.data.converters",
    "read_names": "unilaunch_graph.data.graph_folder",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
