"""The table of PyG's layers by `ug.torch.check`: its verdict on each, and how long it takes.

python benchmarks/checks.py [NAME ...]
"""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch_geometric.nn.conv import spline_conv
from typing_extensions import override

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # where the layers and a small graph are
from models.graph.layers_of_pyg import CASES, Case, spline_basis, spline_weighting
from models.graph.torch_parts import make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug

PARTS = 2


class Called(torch.nn.Module):
    """A layer, called as its case says, with a part's arrays as arguments."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layer, self.call = case.make(), case.call

    @override
    def forward(self, x: torch.Tensor, part: ug.GraphPart) -> Any:
        """Return the layer's rows."""
        return self.call(self.layer, x, part)


def verdict(case: Case, part: ug.GraphPart) -> tuple[str, float]:
    """Return what the check says of a layer, and the processor's seconds that it took."""
    model, begin = Called(case), time.process_time()
    try:
        ug.check(model, part, part.x, part)
    except SpecError as error:
        return f"refused: {error}", time.process_time() - begin
    except ug.NotCheckedError as error:
        return f"not checked: {error}", time.process_time() - begin
    return "exact", time.process_time() - begin


def main() -> None:
    """Print a row for each layer."""
    spline_conv.spline_basis, spline_conv.spline_weighting = spline_basis, spline_weighting  # pyg-lib is optional
    whole = make_whole()
    print("| class | seconds | by its numbers |\n|---|---|---|")
    for name in sys.argv[1:] or CASES:
        text, seconds = on_parts(whole, PARTS, partial(verdict, CASES[name]))[0]
        print(f"| `{name}` | {seconds:.2f} | {text[:150]} |", flush=True)


if __name__ == "__main__":
    main()
