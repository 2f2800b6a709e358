"""Graphs over many ranks: data sets, METIS parts, the halo exchange, and exact operators.

`load` gives a script this rank's part of a graph; `torch` and `mindspore` hold what a network needs to be exact there.
"""

import sys
from importlib import import_module
from typing import Any

from unilaunch.errors import SpecError

#: Each framework has a package of its name here, with the same public names.
_FRAMEWORKS = ("torch", "mindspore")

__all__ = ["load", "mindspore", "torch"]


def load(name: str, *, framework: str | None = None, **options: Any) -> Any:
    """Return this rank's part of a graph. All ranks must call this; the partition is made if it is not there.

    Works in a script that any launcher has started: `unilaunch launch`, mpirun, torchrun, srun, or none (one rank).

    Args:
        name: A data set's name ("cora"), or the path of a graph file or folder.
        framework: "torch" or "mindspore"; None takes the one that the script has imported.
        **options: `device` ("auto", "cpu", "cuda"), and the fields of `unilaunch_graph.spec.DataSpec`: `data_dir`,
            `partition_dir`, `balance`, ...

    Returns:
        The `GraphPart` of that framework.

    Raises:
        SpecError: The framework cannot be told, or an option is unknown or has a value that is not allowed.
        UnilaunchError: The ranks do not find each other, or the data set cannot be used.
    """
    imported = [known for known in _FRAMEWORKS if known in sys.modules]
    chosen = framework or (imported[0] if len(imported) == 1 else "")
    if chosen not in _FRAMEWORKS:
        seen = f"framework={framework!r}" if framework else f"{' and '.join(imported) or 'no framework'} imported"
        raise SpecError(f"load({name!r}): {seen}: name one: framework='torch' or framework='mindspore'")
    return import_module(f"{__name__}.{chosen}").load(name, **options)


def __getattr__(name: str) -> Any:
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
