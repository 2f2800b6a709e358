"""The lines on the right of the tables in docs/graphs.md ("From PyG", ...) are programs, and they run."""

import re
from pathlib import Path

import pytest

from jobs.mpirun import alone

PAGE = Path(__file__).parents[3] / "docs" / "graphs.md"
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


def lines_of(section: str) -> list[str]:
    """Return the code on the right of a section's table."""
    text = PAGE.read_text().partition(f"\n### {section}\n")[2].partition("\n### ")[0]
    cells = [line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| ")]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_lines_on_the_right_run(section: str, tmp_path: Path) -> None:
    """One after the other, as one process; Cora is the graph that was written before."""
    given, holds = SECTIONS[section]
    code = "\n".join(lines_of(section)).replace('"cora"', '"graph-mine"')
    assert "sum_gradients" in code
    (tmp_path / "program.py").write_text(f"{given}\n{code}\n{holds}\n")
    alone(["program.py"], tmp_path, {"UNILAUNCH_DATA": "data"}).check()
