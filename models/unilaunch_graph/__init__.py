"""Graphs over many ranks: data sets, METIS parts, the halo exchange, and exact operators.

`load` gives a script this rank's part of a graph; `torch` and `mindspore` hold what a network needs to be exact there.
Begin with `loading.py`; the packages are `data`, `partition`, `exchange` and `operators`, in the order of their use.
Importing this package imports no framework and no numpy; the public names are resolved when they are used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unilaunch_graph import mindspore, torch
    from unilaunch_graph.data.converters import from_edges, from_networkx, from_pyg, from_scipy
    from unilaunch_graph.data.graph_folder import read_names
    from unilaunch_graph.loading import load, predict

__all__ = [
    "from_edges", "from_networkx", "from_pyg", "from_scipy", "load", "mindspore", "predict", "read_names", "torch",
]  # fmt: skip

_HOMES = {
    "from_edges": "unilaunch_graph.data.converters",
    "from_networkx": "unilaunch_graph.data.converters",
    "from_pyg": "unilaunch_graph.data.converters",
    "from_scipy": "unilaunch_graph.data.converters",
    "load": "unilaunch_graph.loading",
    "predict": "unilaunch_graph.loading",
    "read_names": "unilaunch_graph.data.graph_folder",
}
#: Each framework has a package of its name here.
_FRAMEWORKS = ("mindspore", "torch")


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _FRAMEWORKS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
