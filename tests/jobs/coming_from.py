"""The lines on the right of the table "From DGL" in docs/graphs.md are a program."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "graphs.md"
ARRAYS = """
import numpy as np
draw = np.random.default_rng(0)
source, target = draw.integers(0, 300, (2, 900))
x, y, w = draw.random((300, 8)), draw.integers(0, 3, 300), draw.random(900)
"""
#: What holds at the end of the lines, which take ARRAYS from the user's own program.
END = "assert abs(float(a.sum()) - len(target.unique())) < 1e-3"
#: The data folder of the program; and of every other program beside it that names none.
VARIABLES = {"UNILAUNCH_DATA": "data"}


def write_program(folder: Path) -> list[str]:
    """Write the lines as a program, which says at its end that it has run; return its command line."""
    code = "\n".join(_lines())
    assert "sum_gradients" in code
    (folder / "from_dgl.py").write_text(f"{ARRAYS}\n{code}\n{END}\nprint('From DGL has run')\n")
    return ["from_dgl.py"]


def _lines() -> list[str]:
    """Return the code in the right column of the table."""
    text = PAGE.read_text().partition("\n## From DGL\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| ")]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
