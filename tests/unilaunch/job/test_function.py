"""What ranks run of a script or a notebook; what they could not have is refused, before anything starts."""

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

import unilaunch
from unilaunch.job.function import find_function, select


def train(lr: float, seed: int = 0, **more: Any) -> None:
    """Take what a training takes."""


def evaluate(data: Any = None) -> None:
    """Take one thing."""


async def fetch() -> None:
    """Need an event loop."""


def _supplied(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return function({"lr": 0.1}, *args, **named)

    return call


@_supplied
def configured(cfg: dict[str, float], seeds: int = 0) -> None:
    """Get its first argument from a decorator."""


@pytest.mark.parametrize(("function", "options", "words"), [
    (configured, {"seed_s": 1}, "did you mean seeds?"),
    (lambda: 1, {}, "'<lambda>': ranks cannot find it by this name"), (functools.partial(train, 1), {}, "partial"),
    (train, {}, "train(): missing a required argument: 'lr'"), ("none.py:f", {}, "script none.py: no such file"),
    (train, {"lr": 1, "seed": 3}, "a parameter of train: give train its arguments as args={'seed': ...}"),
    (train, {"lr": 1, "args": {"lr": 2}}, "lr: it is given twice"), (train, {"args": "fast"}, "args: must be a list"),
    (train, {"args": {"lr": 1, "weight-decay": 0.1}}, "'weight-decay': cannot be the name of an argument"),
    (evaluate, {"nproc": 2}, "evaluate(): got an unexpected keyword argument 'nproc'; did you mean nproc_per_node?"),
    (evaluate, {"data": {1, 2}}, "data cannot be sent to the ranks (Object of type set is not JSON serializable)"),
    (evaluate, {"data": np.array([None])}, "data cannot be sent to the ranks (Object arrays cannot be saved"),
    (evaluate, {"data": {1: 2, "1": 3}}, "data cannot be sent to the ranks (two names in a dict are the same text"),
    (evaluate, {"data": "x" * 130_000}, "data is 130 kB of JSON: at most 120 kB can be sent; pass a numpy array"),
    (evaluate, {"env": {"A": 1}}, "env.A: must be a valid string"), (evaluate, {"cwd": "/no"}, "/no: no such folder"),
    (evaluate, {"options": None}, "options: must be a dict"), (evaluate, {"args": {1: 2}}, "must be text, not 1"),
    (fetch, {}, "fetch: an async function: launch one that calls asyncio.run(fetch(...))"),
])  # fmt: skip
def test_what_cannot_be_launched_is_refused(
    function: Any, options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(unilaunch.SpecError) as refused:
        unilaunch.start(function, **options)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_function_is_named_by_its_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the folder from which the module was imported, unless every Python finds it."""
    (tmp_path / "farm").mkdir()
    (tmp_path / "farm" / "work.py").write_text("def plough(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import farm.work  # type: ignore[import-not-found]

    found = find_function(farm.work.plough)
    assert (str(found.target), found.roots) == ("farm.work:plough", (tmp_path,))
    assert find_function(np.linalg.norm).roots == ()
    assert find_function(os.path.join).target.name == "posixpath:join"


def _script(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Let the main module be this script, with the function `train`."""
    main = ModuleType("__main__")
    main.__file__ = str(path)
    main.__dict__["train"] = FunctionType(train.__code__, main.__dict__, "train")
    main.__dict__["train"].__module__ = "__main__"
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def test_a_script_that_ranks_cannot_load_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("job", "__main__.py"):
        (tmp_path / name).touch()
    for name, message in (("job", "/job: ranks load a file whose name ends in .py"), ("gone.py", "source is in no fi")):
        main = _script(tmp_path / name, monkeypatch)
        with pytest.raises(unilaunch.SpecError, match=message):
            find_function(main.__dict__["train"])
    main = _script(tmp_path / "__main__.py", monkeypatch)
    main.__spec__ = ModuleSpec("__main__", None)  # of python FOLDER
    assert find_function(main.__dict__["train"]).target.name == f"{main.__file__}:train"


def test_the_modules_of_a_notebook_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks need the folders that it added to sys.path."""
    main = ModuleType("__main__")
    for name in ("barn", "shed"):
        (tmp_path / name / "of_cells").mkdir(parents=True)
        (tmp_path / name / "of_cells" / f"in_{name}.py").touch()
        monkeypatch.syspath_prepend(tmp_path / name)
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__dict__["In"] = [
        "", "import json\nfrom numpy import linalg\nfrom of_cells import in_shed",
        "def work():\n    from of_cells.in_barn import __name__\n    json, linalg, in_shed",
    ]  # fmt: skip
    exec("\n".join(main.__dict__["In"]), main.__dict__)  # noqa: S102  (as IPython runs cells)
    main.__dict__["work"]()
    found = find_function(main.__dict__["work"])
    assert (found.target.name, found.roots) == ("<cells 1, 2>:work", (tmp_path / "shed", tmp_path / "barn"))


def _select(function: str, cells: list[str]) -> tuple[str, list[int]]:
    """Select after the cells were run; those that end with an error are among them."""
    held: dict[str, Any] = {}
    for cell in cells:
        with suppress(Exception):
            exec(cell, held)  # noqa: S102  (as IPython does)
    return select(function, cells, held)


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
    source, cells = _select("train", CELLS)
    assert cells == [1, 3, 6]
    assert "print" not in source
    assert "launch" not in source
    names: dict[str, Any] = {}
    exec(f"{source}\nreturned = train(4)", names)  # noqa: S102  (that is what a rank does)
    assert names["returned"][:2] + names["returned"][3:] == ["a", 16, 2.0, "/"]


@pytest.mark.parametrize(("changes", "why"), [
    ("C[0] = 2", "f uses C, which cell 2 changes: pass it as an argument"), ("for C[0] in 'a': pass", "cell 2 changes"),
    ("del C[0]", "f uses C, which cell 2 changes"), ("C[:] = [True, 2, 3]", "f uses C, which cell 2 changes"),
    ("C.append(4)", "f uses C, which is no longer what cell 1 says"), ("D = C; D.append(1)", "no longer what cell 1 s"),
    ("import nosuch\nC = [3, 1, 2]", "f uses C, which is no longer what cell 2"),  # it has failed before it was there
    ("import random\nrandom.seed(1)\nrandom.shuffle(C)", "f uses C, which is no longer what cell 1"),
    ("def g():\n    global C\n    C = 5\ng()", "f uses C, which is no longer what cell 1"),
    ("def t(one):\n    C.append(one)\n    return one\n@t\ndef h(): pass", "f uses C, which is no longer what cell 1"),
    ("import numpy\nC.__setitem__(0, numpy.ones(3))", "f uses C, which is no longer what cell 1"),
    ("data = open('x').read()\ndef f(): return data", "f uses data, which cell 2 computes: pass it as an argument"),
    # As `%%time` before it leaves it.
    ("get_ipython().run_cell_magic('time', '', 'def f(): pass')", "f: no cell defines it by itself: take %%time"),
])  # fmt: skip
def test_what_is_not_what_its_cell_says_is_refused(changes: str, why: str) -> None:
    """The ranks would compute with the old value; by any way: the value itself is compared."""
    cells = ["", "C = [1, 2, 3]", changes, "" if "f()" in changes else "def f(): return C"]
    with pytest.raises(unilaunch.SpecError, match=why):
        _select("f", cells)


@pytest.mark.parametrize(("before", "after", "returns"), [
    ("import os\nclass Net(os.PathLike): pass", "import os", "Net, os.sep"),
    ("lr = 0.1", "lr = lr * 0.5", "lr"), ("x = 3", "x: int", "x"), ("act = lambda x: x", "y = 2", "act(y)"),
    ("import xml.etree.ElementTree", "import xml.dom.minidom", "xml.etree.ElementTree, xml.dom.minidom"),
    ("import math\nPI = math.pi\na, b = PI, [PI]", "b.append(1)", "a"), ("C = {}\nC[0] = 1", "C = {'a': 3}", "C['a']"),
    ("import types as C", "C.a = 1", "C"),  # a module: each rank has its own
])  # fmt: skip
def test_cells_that_are_run_again_are_no_obstacle(before: str, after: str, returns: str) -> None:
    """What a definition needs at once is there before it; all that a function has in the notebook is there."""
    source, _ = _select("f", ["", before, after, f"def f(): return {returns}"])
    exec(f"{source}\nf()", {})  # noqa: S102  (that is what a rank does)
