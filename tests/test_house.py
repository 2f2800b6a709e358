"""The sources are read in small pieces, and what is written of them is true."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("unilaunch", "backends", "models", "docs/hooks")
SOURCES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
INITS = [path for path in SOURCES if path.name == "__init__.py"]
#: A file of Python, or a folder, as a page or a docstring names it.
NAMED = re.compile(r"`((?:[\w*]+/)*(?:[\w*]+\.py|[\w]+/))`")


def test_modules_and_functions_are_short() -> None:
    """At most 300 lines, and 40 without the docstring, in every package."""
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    functions = [
        (str(path.relative_to(ROOT)), one.name, (one.end_lineno or 0) - one.lineno + 1 - _docstring(one))
        for path, text in texts.items()
        for one in ast.walk(ast.parse(text))
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(SOURCES) > 250
    assert [str(path) for path, text in texts.items() if len(text.splitlines()) > 300] == []
    assert [one for one in functions if one[2] > 40] == []


def _docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function's docstring."""
    first = function.body[0]
    return (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(function) else 0


def test_few_lines_stand_twice_for_the_two_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than half of those before the networks were shared."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from duplicates import BEFORE_COUNT, lines_twice

    lines = lines_twice(ROOT)
    assert len(lines) < BEFORE_COUNT / 2, "\n".join(lines)


def test_lines_that_stand_twice_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As often as in both; without imports, docstrings, comments, signatures, and short lines."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from duplicates import lines_twice

    line, text = (
        "total = first + second + third",
        (
            "import one_long_module_name\n"
            "def function(\n    argument_with_a_name,\n):\n"
            '    """Words that stand in both files."""\n'
            "    # a comment of both files\n"
            "    short = 1\n"
        ),
    )
    for folder, framework, times in (("backends", "torch", 2), ("models", "mindspore", 3), ("models", "mnist", 9)):
        path = tmp_path / folder / f"unilaunch_{framework}" / f"{framework}.py"
        path.parent.mkdir(parents=True)
        path.write_text(text + f"    {line}\n" * times)
    places = "backends/unilaunch_torch/torch.py, models/unilaunch_mindspore/mindspore.py"
    assert lines_twice(tmp_path) == [f"{line}  # {places}"] * 2


def test_architecture_names_modules_that_exist() -> None:
    """In the repository, or in the core; and it fits two pages."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = {name for name in NAMED.findall(page) if "_graph." not in name}
    assert len(names) > 60
    assert [one for one in sorted(names) if not any((base / one).exists() for base in _bases())] == []
    assert len(page.splitlines()) <= 110


def _bases() -> tuple[Path, ...]:
    return ROOT, ROOT / "unilaunch", ROOT / "models" / "unilaunch_graph"


@pytest.mark.parametrize("path", INITS, ids=lambda path: path.parent.name)
def test_a_package_says_what_is_in_it_and_where_to_begin(path: Path) -> None:
    """In a few lines, which name files that exist."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert "Begin with" in text
    assert len([line for line in text.splitlines() if line]) <= 4
    named = NAMED.findall(text)
    assert named
    assert [one for one in named if not [*path.parent.glob(one)] and not (ROOT / one).exists()] == []
