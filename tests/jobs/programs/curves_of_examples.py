"""Scripts of examples/ in MindSpore and float64, one after the other; rank 0 writes initial weights and losses.

curves_of_examples.py GRAPH EPOCHS OUTPUT.npz EXAMPLE.py...
"""

import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter

import unilaunch
import unilaunch_graph as ug


class Observed(ug.mindspore.Adam):
    """The optimizer of the examples, which keeps the weights that it begins with."""

    initial: dict[str, Any]

    def __init__(self, parameters: Iterable[Parameter], *arguments: Any, **options: Any) -> None:
        super().__init__(parameters, *arguments, **options)
        Observed.initial = {parameter.name: np.array(parameter.asnumpy()) for parameter in self.parameters}


def main() -> None:
    """Train each; the names in the file begin with the example's."""
    graph, epochs, output, *examples = sys.argv[1:]
    ug.mindspore.Adam = Observed  # type: ignore[misc]
    found: dict[str, Any] = {}
    for example in examples:
        name = Path(example).stem
        found[f"{name}.losses"] = runpy.run_path(example)["main"](graph, epochs, "float64")
        found |= {f"{name}.{key}": value for key, value in Observed.initial.items()}
    if unilaunch.init().rank == 0:
        np.savez(output, **found)


if __name__ == "__main__":
    main()
