"""The lines on the right of the table "From DGL" in docs/graphs.md are a program."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "graphs.md"
#: What the lines take from the user's own program, and what holds at their end.
PROGRAM = """
import numpy as np
draw = np.random.default_rng(0)
source, target = draw.integers(0, 300, (2, 900))
x, y, w = draw.random((300, 8)), draw.integers(0, 3, 300), draw.random(900)
{}
assert abs(float(a.sum()) - len(target.unique())) < 1e-3
print('From DGL has run')
"""
#: The data folder of the program; and of every other program beside it that names none.
VARIABLES = {"UNILAUNCH_DATA": "data"}


def write_program(folder: Path) -> list[str]:
    """Write the lines as a program, which says at its end that it has run; return its command line."""
    text = PAGE.read_text().partition("\n## From DGL\n")[2].partition("\n## ")[0]
    cells = "\n".join(line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| "))
    (folder / "from_dgl.py").write_text(PROGRAM.format("\n".join(re.findall(r"`([^`\n]+)`", cells))))
    return ["from_dgl.py"]
