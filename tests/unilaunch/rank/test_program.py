"""The import of a framework within the user's own program."""

import gc
import importlib
import importlib.util
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np
import pytest

from full_disk import refusal_without_space
from unilaunch.errors import SpecError
from unilaunch.rank.program import AroundImport, check_value, exit_code, keep_value, leave_out_launcher, run_program
from unilaunch.spec.target import Target


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the finders and what was imported as they were."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def _framework(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (folder / "a_framework.py").write_text(text)
    monkeypatch.syspath_prepend(folder)


def test_an_import_that_fails_leaves_the_collector_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a second one, once it can be imported, is hooked."""
    _framework(tmp_path, monkeypatch, "import sys\nif not hasattr(sys, 'cured'): raise ImportError('no libcudart')\n")
    seen: list[ModuleType] = []
    sys.meta_path.insert(0, AroundImport({"a_framework": [seen.append]}))
    with pytest.raises(ImportError, match="no libcudart"):
        importlib.import_module("a_framework")
    assert gc.isenabled()
    monkeypatch.setattr(sys, "cured", True, raising=False)
    assert seen == [importlib.import_module("a_framework")]


@pytest.mark.parametrize(("kind", "name", "lines"), [
    ("script", "broken.py", ['  File "{}/broken.py", line 2', "    x = (", "        ^", "SyntaxError: ..."]),
    ("function", "no_module:main", ["ModuleNotFoundError: No module named 'no_module'"]),
    ("function", "json:loads", ["TypeError: loads() missing 1 required positional argument: 's'"]),
])  # fmt: skip
def test_a_program_that_never_ran_has_no_frame_of_ours(
    kind: Literal["script", "module", "function"],
    name: str,
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is shown is what is wrong with it."""
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(sys, "argv", [""])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("first = 1\nx = (\n")
    main = sys.modules["__main__"]
    try:
        with pytest.raises((SyntaxError, ImportError, TypeError)) as raised:
            run_program(Target(kind, name), [])
    finally:
        sys.modules["__main__"] = main
    error = raised.value
    while error.__traceback__ and error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    leave_out_launcher(error)
    assert "".join(traceback.format_exception(error)).replace("'(' was never closed", "...").splitlines() == [
        line.format(tmp_path) for line in lines
    ]


def test_a_value_that_is_too_large_is_refused_in_one_line() -> None:
    """It would not come back; before, the job ended 75 s later with 137."""
    with pytest.raises(SpecError, match=r"make returned 70 MB: at most 67 MB come back"):
        check_value("x" * 70_000_000, "make")


@pytest.mark.parametrize("value", [{1, 2}, object(), {(1, 2): 3}, {1: 2, "1": 3}, [(loop := []), loop.append(loop)]])  # type: ignore[var-annotated, func-returns-value]
def test_what_cannot_be_sent_is_refused_in_one_line(value: object, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"make returned a value that cannot be sent \(.*\): expected numbers"):
        keep_value(value, "make", tmp_path)


def test_an_array_that_finds_no_space_is_named(tmp_path: Path) -> None:
    """Its file and the reason; numpy's own error has neither."""
    refused = refusal_without_space(lambda: keep_value(np.zeros(8192), "make", tmp_path), 4096)
    assert re.search(r"value\.0\.npy: make returned an array that cannot be written: .*8192", refused)


def test_a_function_of_a_file_runs_without_its_main_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is `__main__` too, so that what it pickles for its own processes is found."""
    file = tmp_path / "train.py"
    file.write_text(
        "import sys\nclass Net: pass\ndef train(x, n=1):\n"
        "    return [x, n, __name__, Net is sys.modules['__main__'].Net, sys.path[0]]\n"
        "if __name__ == '__main__': raise SystemExit(7)\n"
    )
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(sys, "argv", ["pytest"])
    value = run_program(Target("function", f"{file}:train"), ["[1]", "n=2"])
    assert value == [[1], 2, "__mp_main__", True, str(tmp_path)]
    with pytest.raises(SpecError, match="has no missing"):
        run_program(Target("function", f"{file}:missing"), [])


@pytest.mark.parametrize("code", [None, 0, True, -1, 256, 1 << 70, -(1 << 63) - 1, "words", 3.5])
def test_a_program_has_the_exit_code_that_python_gives_it(code: object) -> None:
    """Also where it is no number of 8 bits: the sum of many errors is no success."""
    plain = subprocess.run(
        [sys.executable, "-S", "-c", f"raise SystemExit({code!r})"], check=False, capture_output=True
    )
    assert exit_code(SystemExit(code)) == plain.returncode
