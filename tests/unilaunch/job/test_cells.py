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
    source, cells = select("train", CELLS)
    assert cells == [1, 3, 6]
    assert "print" not in source
    assert "launch" not in source
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102  (that is what a rank does)
    train = names["train"]
    assert callable(train)
    assert train(4)[:2] == ["a", 16]
    assert train(4)[3:] == [2.0, "/"]


def test_what_a_cell_has_computed_is_an_argument() -> None:
    with pytest.raises(SpecError, match=r"evaluate uses data, which cell 3 computes: pass it as an argument"):
        select("evaluate", CELLS)


@pytest.mark.parametrize(
    "changes", ["C['a']['b'] = 2", "C.a = 2", "C['a'].update(b=2)", "for k in 'ab': C[k] = 1", "del C['a']"]
)
def test_what_a_cell_has_changed_is_an_argument(changes: str) -> None:
    """The ranks would compute with the old value."""
    with pytest.raises(SpecError, match="f uses C, which cell 2 changes: pass it as an argument"):
        select("f", ["", "C = {'a': {'b': 1}}", changes, "def f(): return C"])
    assert "'a': 3" in select("f", ["", "C = {'a': 1}", changes, "C = {'a': 3}", "def f(): return C"])[0]
    select("f", ["", "import C", changes, "def f(): return C"])  # of a module: each rank has its own
    select("f", ["", "C = {'a': 1}", changes.replace("C", "D"), "def f(): return C"])


def test_a_function_that_no_cell_defines_is_refused() -> None:
    """As `%%time` before it leaves it."""
    with pytest.raises(SpecError, match="f: no cell defines it by itself: take %%time or %run off"):
        select("f", ["", "get_ipython().run_cell_magic('time', '', 'def f(): pass')"])
