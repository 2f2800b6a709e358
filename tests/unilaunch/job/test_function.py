"""Functions and arguments that ranks could not have are refused in one line, before anything starts."""

import functools
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

import unilaunch
from unilaunch.job.function import Arguments, find_function, words


def train(lr: float, seed: int = 0, **more: Any) -> None:
    """Take what a training takes."""


def evaluate(data: Any = None) -> None:
    """Take one thing."""


async def fetch() -> None:
    """Need an event loop."""


def _supplied(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(function)(lambda *args, **named: function({"lr": 0.1}, *args, **named))


@_supplied
def configured(cfg: dict[str, float], seeds: int = 0) -> None:
    """Get its first argument from a decorator."""


@pytest.mark.parametrize(("function", "options", "words"), [
    (lambda: 1, {}, "'<lambda>': ranks cannot find it by this name"), (functools.partial(train, 1), {}, "partial"),
    (train, {}, "train(): missing a required argument: 'lr'"),
    (train, {"lr": 1, "seed": 3}, "a parameter of train: give train its arguments as args={'seed': ...}"),
    (train, {"lr": 1, "args": {"lr": 2}}, "lr: it is given twice"),
    (train, {"args": "fast"}, "args: must be a list of arguments, or a dict by name"),
    (evaluate, {"nproc": 2}, "evaluate(): got an unexpected keyword argument 'nproc'; did you mean nproc_per_node?"),
    (evaluate, {"data": {1, 2}}, "data cannot be sent to the ranks (Object of type set is not JSON serializable)"),
    (evaluate, {"data": np.array([None])}, "data cannot be sent to the ranks (Object arrays cannot be saved"),
    (evaluate, {"data": {1: 2, "1": 3}}, "data cannot be sent to the ranks (two names in a dict are the same text"),
    (evaluate, {"data": "x" * 130_000}, "data is 130 kB of JSON: at most 120 kB can be sent; pass a numpy array"),
    (train, {"args": {"lr": 1, "weight-decay": 0.1}}, "'weight-decay': cannot be the name of an argument"),
    (evaluate, {"env": {"A": 1}}, "env.A: must be a valid string"), (configured, {"seed_s": 1}, "did you mean seeds?"),
    (evaluate, {"nprocs": 2, "cwd": "/nowhere"}, "/nowhere: no such folder"),
    (evaluate, {"options": None}, "options: must be a dict"), (evaluate, {"args": {1: 2}}, "must be text, not 1"),
    (fetch, {}, "fetch: an async function: launch one that calls asyncio.run(fetch(...))"),
    ("missing.py:train", {}, "script missing.py: no such file"),
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


def test_a_spec_with_mistakes_is_refused_in_one_line() -> None:
    """Without pydantic's page of text; and a function object is shown its way."""
    with pytest.raises(unilaunch.SpecError) as refused:
        unilaunch.LaunchSpec(target=train, nprocs=0, oversubscribed=True)  # type: ignore[call-arg, arg-type]
    for message in ("unilaunch.launch(train, nprocs=2)", "nprocs: must be greater", "did you mean oversubscribe?"):
        assert message in str(refused.value)


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
    for name in ("job", "job.py", "__main__.py"):
        (tmp_path / name).touch()
    for name, message in (("job", "/job: ranks load a file whose name ends in .py"), ("gone.py", "source is in no fi")):
        main = _script(tmp_path / name, monkeypatch)
        with pytest.raises(unilaunch.SpecError, match=message):
            find_function(main.__dict__["train"])
    main = _script(tmp_path / "__main__.py", monkeypatch)
    main.__spec__ = ModuleSpec("__main__", None)  # of python FOLDER
    assert find_function(main.__dict__["train"]).target.name == f"{main.__file__}:train"
    main = _script(tmp_path / "job.py", monkeypatch)
    del main.__spec__  # as pdb does
    assert find_function(main.__dict__["train"]).target.name == f"{main.__file__}:train"


def test_the_modules_of_a_notebook_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks need the folders that it added to sys.path."""
    main = ModuleType("__main__")
    for name in ("barn", "shed"):
        (tmp_path / name / "of_cells").mkdir(parents=True)
        (tmp_path / name / "of_cells" / f"in_{name}.py").touch()
        monkeypatch.syspath_prepend(tmp_path / name)
    (tmp_path / "farm_of_cells.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__dict__["In"] = [
        "", "import json, zlib, farm_of_cells\nfrom numpy import linalg\nfrom of_cells import in_shed",
        "def work():\n    from of_cells.in_barn import __name__\n    farm_of_cells, json, linalg, in_shed, zlib",
    ]  # fmt: skip
    exec("\n".join(main.__dict__["In"]), main.__dict__)  # noqa: S102  (as IPython runs cells)
    main.__dict__["work"]()
    found = find_function(main.__dict__["work"])
    assert found.target.name == "<cells 1, 2>:work"
    assert found.roots == (tmp_path, tmp_path / "shed", tmp_path / "barn")


def test_arrays_in_many_arguments_fit_into_a_command_line(tmp_path: Path) -> None:
    """Those that fit no more are in files."""
    told = words(Arguments((), (), {f"array{number}": np.zeros(5000) for number in range(60)}), tmp_path, "f")
    assert sum(map(len, told)) < 1 << 20
    assert len(list(tmp_path.iterdir())) == 60 - 12
    with pytest.raises(unilaunch.UnilaunchError, match=r"f: big cannot be written to .* \(No such file or directory\)"):
        words(Arguments((), (), {"big": np.zeros(9000)}), tmp_path / "none", "f")
