"""The lines on the right of the tables in docs/graphs.md ("From DGL", ...) are programs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "graphs.md"
ARRAYS = """
import numpy as np
draw = np.random.default_rng(0)
source, target = src_idx, dst_idx = draw.integers(0, 300, (2, 900))
x, y, w = draw.random((300, 8)), draw.integers(0, 3, 300), draw.random(900)
"""
#: What holds at the end of each section's lines, which take ARRAYS from the user's own program.
SECTIONS = {
    "From DGL": "assert abs(float(a.sum()) - len(target.unique())) < 1e-3",
    "From MindSpore Graph Learning": "assert float(step()[0]) < float(loss)",
}
#: The data folder of the programs; and of every other program beside them that names none.
VARIABLES = {"UNILAUNCH_DATA": "data"}


def write_program(section: str, folder: Path) -> list[str]:
    """Write the lines of a section as a program, which says at its end that it has run; return its command line."""
    code = "\n".join(_lines_of(section))
    assert "sum_gradients" in code
    name = f"{section.replace(' ', '_')}.py"
    (folder / name).write_text(f"{ARRAYS}\n{code}\n{SECTIONS[section]}\nprint({section!r}, 'has run')\n")
    return [name]


def _lines_of(section: str) -> list[str]:
    """Return the code in the right column of a section's table."""
    text = PAGE.read_text().partition(f"\n### {section}\n")[2].partition("\n### ")[0]
    cells = [line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| ")]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
