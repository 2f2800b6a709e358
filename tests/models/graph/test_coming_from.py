"""The lines on the right of the tables in docs/graphs.md ("From PyG", ...) are programs, and they run."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "graphs.md"
#: What the lines of each section take from the user's own program, and what must hold at their end.
SECTIONS = {
    "From PyG": ("PYG", "assert classes.shape == (60,)"),
    "From DGL": ("ARRAYS", "assert float(a.sum()) == np.float32(len(a.unique()) and target.unique().numel())"),
    "From MindSpore Graph Learning": ("ARRAYS", "assert float(step()[0]) < float(loss)"),
}
ARRAYS = """
import numpy as np
draw = np.random.default_rng(0)
source, target = src_idx, dst_idx = draw.integers(0, 60, (2, 300))
x, y, w = draw.random((60, 8)), draw.integers(0, 3, 60), draw.random(300)
"""
PYG = """
import warnings
warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
import torch
from torch_geometric.data import Data
data = Data(x=torch.rand(60, 8), y=torch.arange(60) % 3, edge_index=torch.randint(60, (2, 300)))
"""


def lines_of(section: str) -> list[str]:
    """Return the code on the right of a section's table."""
    text = PAGE.read_text().partition(f"\n### {section}\n")[2].partition("\n### ")[0]
    rows = [line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| ")]
    return [code for row in rows[1:] for code in re.findall(r"`([^`]+)`", row)]
