"""The lines on the right of the tables in docs/graphs.md ("From PyG", ...) are programs; PyG's own on the left too."""

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
torch.manual_seed(0)
data = Data(x=torch.rand(300, 8), y=torch.arange(300) % 7, edge_index=torch.randint(300, (2, 900)))
data.train_mask = torch.arange(300) < 150
data.test_mask, data.val_mask = torch.arange(300) >= 200, (torch.arange(300) // 50) == 3
"""
#: What PyG's lines, on the left, take beside it.
LEFT = f"""
{PYG}
import torch.nn.functional as F
from types import SimpleNamespace
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GATConv
from torch_geometric.transforms import NormalizeFeatures
torch.save(data, "mine.pt")
self, x = SimpleNamespace(training=True), data.x
"""
#: What the lines of each section take from the user's own program, and what holds at their end.
SECTIONS = {
    "From PyG": (
        PYG,
        "assert classes.shape == (300,)\nprint(f'{loss:.5f} {ug.torch.mean(right, part.num_test):.5f}')",
    ),
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


def write_program_of_pyg(folder: Path) -> list[str]:
    """Write PyG's lines, on the left of "From PyG", as a program that prints its loss and its accuracy.

    The folder has Cora's files where PyG looks for them.
    """
    code = "\n".join(_lines_of("From PyG", 0))
    (folder / "pyg.py").write_text(f"{LEFT}\n{code}\nprint(f'{{loss:.5f}} {{right.float().mean():.5f}}')\n")
    return ["pyg.py"]


def _lines_of(section: str, column: int = -1) -> list[str]:
    """Return the code in a column of a section's table, the right one or (0) the left one."""
    text = PAGE.read_text().partition(f"\n### {section}\n")[2].partition("\n### ")[0]
    cells = [line.split(" | ")[column] for line in text.splitlines() if line.startswith("| ")]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
