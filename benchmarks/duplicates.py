"""Count the lines of code that stand twice: in a file for torch, and in a file for MindSpore.

    python benchmarks/duplicates.py [COMMIT]

Prints each such line of this checkout, or of COMMIT, with a file of either framework, and how many there are beside
how many commit b741022 has. The bound is half of that.

A file is for a framework if its path under `backends/` or `models/` names it; MNIST, an example, is left out. A line
counts if it has 20 characters or more. Not counted: imports, docstrings, comments, and the signature of a method that
a class without a framework declares too, since such an interface asks every framework for the same line. A line that
stands several times in both files counts as often as in the file that has it less often.
"""

import ast
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

#: The commit before the networks were shared, and its count.
BEFORE, BEFORE_COUNT = "b741022", 26
FRAMEWORKS = ("torch", "mindspore")
_LEAST = 20
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    """Print the lines and the verdict, and return 0 if the bound is kept."""
    root = Path(__file__).parents[1]
    if not sys.argv[1:]:
        lines = lines_twice(root)
    else:
        with tempfile.TemporaryDirectory() as folder:
            archive = ["git", "archive", sys.argv[1], "unilaunch", "backends", "models"]
            packed = subprocess.run(archive, cwd=root, capture_output=True, check=True)
            subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
            lines = lines_twice(Path(folder))
    print("\n".join(lines))
    kept = len(lines) <= BEFORE_COUNT // 2
    print(f"{'kept' if kept else 'BROKEN'}: {len(lines)} lines stand twice; {BEFORE} has {BEFORE_COUNT}: at most half")
    return 0 if kept else 1


def lines_twice(root: Path) -> list[str]:
    """Return each line that stands in files of both frameworks, with the first file of either."""
    sources = {path.relative_to(root): ast.parse(path.read_text("utf-8")) for path in _files(root)}
    shared = {
        method.name
        for path, tree in sources.items()
        if _framework(path) is None
        for method in _methods(tree)
        if not method.name.startswith("__")
    }
    torch, mindspore = (_places(root, sources, framework, shared) for framework in FRAMEWORKS)
    return [
        f"{line}  # {torch[line][0]}, {mindspore[line][0]}"
        for line in torch
        for _ in range(min(len(torch[line]), len(mindspore[line])))
    ]


def _files(root: Path) -> Iterator[Path]:
    for folder in ("unilaunch", "backends", "models"):
        yield from sorted((root / folder).rglob("*.py"))


def _framework(path: Path) -> str | None:
    """Return the framework that a path names."""
    if path.parts[0] == "unilaunch":
        return None
    return next((name for name in FRAMEWORKS if name in str(path)), None)


def _places(root: Path, sources: dict[Path, ast.Module], framework: str, shared: set[str]) -> dict[str, list[Path]]:
    """Return the lines that count in the files of a framework, each with its files."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path, tree in sources.items():
        if _framework(path) != framework or "unilaunch_mnist" in path.parts:
            continue
        left_out = set(_not_counted(tree, shared))
        for number, line in enumerate((root / path).read_text("utf-8").splitlines(), 1):
            code = line.strip()
            if number not in left_out and not code.startswith("#") and len(code) >= _LEAST:
                found[code].append(path)
    return found


def _not_counted(tree: ast.Module, shared: set[str]) -> Iterator[int]:
    """Yield the numbers of the lines of imports, docstrings, and signatures of methods that *shared* names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from range(node.lineno, (node.end_lineno or 0) + 1)
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None:
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    for method in _methods(tree):
        if method.name in shared:
            yield from range(method.lineno, method.body[0].lineno)


def _methods(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (one for one in node.body if isinstance(one, Function))


if __name__ == "__main__":
    sys.exit(main())
