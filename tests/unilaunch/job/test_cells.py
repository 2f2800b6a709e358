"""What ranks run of a notebook: the imports, definitions and constants that a function uses, and nothing else."""

import pytest

from unilaunch.errors import SpecError
from unilaunch.job.cells import select

CELLS = [
    "",
    "import numpy as np\nimport os, sys\nfrom math import *\nWIDTH = 16\nNAMES = ['a', WIDTH]\nprint('not in ranks')",
    "%matplotlib inline",  # as it is shown: no Python, so it was not run by Python
    "data = np.load('x.npy')\nclass Net:\n    width = WIDTH\n    def sizes(self): return NAMES",
    "def train(n, /):\n    def inner(): return Net().sizes() + [np.pi, sqrt(n)]\n    return inner()",
    "unilaunch.launch(train, args=[4])",
    "def train(n, /):\n    def inner(): return Net().sizes() + [np.pi, sqrt(n), os.sep]\n    return inner()",
    "def evaluate(): return data.sum()",
]


def test_a_function_brings_what_it_uses() -> None:
    """The last definition of each name, in the order of the cells; no call, and no import of others."""
    chosen = select("train", CELLS)
    assert chosen.cells == (1, 3, 6)
    assert "print" not in chosen.source
    assert "launch" not in chosen.source
    names: dict[str, object] = {}
    exec(chosen.source, names)  # noqa: S102  (that is what a rank does)
    train = names["train"]
    assert callable(train)
    assert train(4)[:2] == ["a", 16]
    assert train(4)[3:] == [2.0, "/"]


def test_what_a_cell_has_computed_is_an_argument() -> None:
    with pytest.raises(SpecError, match=r"evaluate uses data, which cell 3 computes: pass it as an argument"):
        select("evaluate", CELLS)
