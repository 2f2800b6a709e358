"""The lines on the right of the tables in docs/graphs.md ("From PyG", ...) are programs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "graphs.md"
ARRAYS = """
import numpy as np
draw = np.random.default_rng(0)
source, target = src_idx, dst_idx = draw.integers(0, 300, (2, 900))
x, y, w = draw.random((300, 8)), draw.integers(0, 3, 300), draw.random(900)
"""
PYG = """
import torch
from torch_geometric.data import Data
data = Data(x=torch.rand(300, 8), y=torch.arange(300) % 3, edge_index=torch.randint(300, (2, 900)))
"""
#: What the lines of each section take from the user's own program, and what holds at their end.
SECTIONS = {
    "From PyG": (PYG, "assert classes.shape == (300,)"),
    "From DGL": (ARRAYS, "assert abs(float(a.sum()) - len(target.unique())) < 1e-3"),
    "From MindSpore Graph Learning": (ARRAYS, "assert float(step()[0]) < float(loss)"),
}
#: The data folder of the programs; and of every other program beside them that names none.
VARIABLES = {"UNILAUNCH_DATA": "data"}


def write_program(section: str, folder: Path) -> list[str]:
    """Write the lines of a section as a program, which says at its end that it has run; return its command line.

    Cora is the graph that was written before.
    """
    given, holds = SECTIONS[section]
    code = "\n".join(_lines_of(section)).replace('"cora"', '"graph-mine"')
    assert "sum_gradients" in code
    name = f"{section.replace(' ', '_')}.py"
    (folder / name).write_text(f"{given}\n{code}\n{holds}\nprint({section!r}, 'has run')\n")
    return [name]


def _lines_of(section: str) -> list[str]:
    """Return the code on the right of a section's table."""
    text = PAGE.read_text().partition(f"\n### {section}\n")[2].partition("\n### ")[0]
    cells = [line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| ")]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
