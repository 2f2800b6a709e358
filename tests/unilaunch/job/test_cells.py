"""What ranks run of a notebook: the imports, definitions and constants that a function uses, and nothing else."""

from contextlib import suppress
from typing import Any

import pytest

from unilaunch.errors import SpecError
from unilaunch.job import function as function_module


def select(function: str, cells: list[str]) -> tuple[str, list[int]]:
    """Select after the cells were run; those that end with an error are among them."""
    held: dict[str, Any] = {}
    for cell in cells:
        with suppress(Exception):
            exec(cell, held)  # noqa: S102  (as IPython does)
    return function_module.select(function, cells, held)


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
    source, cells = select("train", CELLS)
    assert cells == [1, 3, 6]
    assert "print" not in source
    assert "launch" not in source
    names: dict[str, Any] = {}
    exec(f"{source}\nreturned = train(4)", names)  # noqa: S102  (that is what a rank does)
    assert names["returned"][:2] + names["returned"][3:] == ["a", 16, 2.0, "/"]


@pytest.mark.parametrize("changes", ["C['a']['b'] = 2", "C['a'].update(b=2)", "for k in 'ab': C[k] = 1", "del C['a']"])
def test_what_a_cell_has_changed_is_an_argument(changes: str) -> None:
    """The ranks would compute with the old value."""
    why = "which is no longer what cell 1 says" if "update" in changes else "which cell 2 changes"
    with pytest.raises(SpecError, match=f"f uses C, {why}: pass it as an argument"):
        select("f", ["", "C = {'a': {'b': 1}}", changes, "def f(): return C"])
    assert "'a': 3" in select("f", ["", "C = {'a': 1}", changes, "C = {'a': 3}", "def f(): return C"])[0]
    select("f", ["", "import C", changes, "def f(): return C"])  # of a module: each rank has its own
    select("f", ["", "C = {'a': 1}", changes.replace("C", "D"), "def f(): return C"])


@pytest.mark.parametrize(("changes", "why"), [
    ("import nosuch\nC = [3, 1, 2]", "f uses C, which is no longer what cell 2"),  # it has failed before it was there
    ("import random\nrandom.seed(1)\nrandom.shuffle(C)", "f uses C, which is no longer what cell 1"),
    ("def g():\n    global C\n    C = 5\ng()", "f uses C, which is no longer what cell 1"),
    ("def t(one):\n    C.append(one)\n    return one\n@t\ndef h(): pass", "f uses C, which is no longer what cell 1"),
    ("C[:] = [True, 2, 3]", "f uses C, which cell 2 changes"), ("D = C; D.append(1)", "which is no longer what cell 1"),
    ("import numpy\nC.__setitem__(0, numpy.ones(3))", "f uses C, which is no longer what cell 1"),
    ("data = open('x').read()\ndef f(): return data", "f uses data, which cell 2 computes: pass it as an argument"),
    # As `%%time` before it leaves it.
    ("get_ipython().run_cell_magic('time', '', 'def f(): pass')", "f: no cell defines it by itself: take %%time"),
])  # fmt: skip
def test_what_is_not_what_its_cell_says_is_refused(changes: str, why: str) -> None:
    """By any way: the value itself is compared."""
    cells = ["", "C = [1, 2, 3]", changes, "" if "f()" in changes else "def f(): return C"]
    with pytest.raises(SpecError, match=why):
        select("f", cells)


@pytest.mark.parametrize(("before", "after", "returns"), [
    ("import os\nclass Net(os.PathLike): pass", "import os", "Net, os.sep"),
    ("lr = 0.1", "lr = lr * 0.5", "lr"), ("x = 3", "x: int", "x"), ("act = lambda x: x", "y = 2", "act(y)"),
    ("import xml.etree.ElementTree", "import xml.dom.minidom", "xml.etree.ElementTree, xml.dom.minidom"),
    ("import math\nPI = math.pi\na, b = PI, [PI]", "b.append(1)", "a"),
])  # fmt: skip
def test_cells_that_are_run_again_are_no_obstacle(before: str, after: str, returns: str) -> None:
    """What a definition needs at once is there before it; all that a function has in the notebook is there."""
    source, _ = select("f", ["", before, after, f"def f(): return {returns}"])
    exec(f"{source}\nf()", {})  # noqa: S102  (that is what a rank does)
