"""Count the lines of code that stand twice: in a file for torch, and in a file for MindSpore.

    python benchmarks/duplicates.py [COMMIT]

Prints each such line of this checkout, or of COMMIT, with a file of either framework, and how many there are beside
how many commit b741022 has. The bound is less than half of that.

A file is for a framework if its path under `backends/` or `models/` names it; MNIST, an example, is left out. A line
counts if it has 20 characters or more. Not counted are imports, docstrings, comments, and the signatures of functions:
classes that implement one interface, and public functions that both frameworks have, must have the same. A line that
stands several times in the files of both frameworks counts as often as in those that have it less often.
"""

import ast
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

#: The commit before the networks were shared, and its count.
BEFORE, BEFORE_COUNT = "b741022", 24
FOLDERS, FRAMEWORKS = ("backends", "models"), ("torch", "mindspore")
_LEAST = 20


def main() -> int:
    """Print the lines and the verdict, and return 0 if the bound is kept."""
    root = Path(__file__).parents[1]
    if not sys.argv[1:]:
        lines = lines_twice(root)
    else:
        with tempfile.TemporaryDirectory() as folder:
            archive = ["git", "archive", sys.argv[1], *FOLDERS]
            packed = subprocess.run(archive, cwd=root, capture_output=True, check=True)
            subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
            lines = lines_twice(Path(folder))
    print("\n".join(lines))
    kept = len(lines) < BEFORE_COUNT / 2
    print(f"{'kept' if kept else 'BROKEN'}: {len(lines)} lines stand twice < half of {BEFORE}'s {BEFORE_COUNT}")
    return 0 if kept else 1


def lines_twice(root: Path) -> list[str]:
    """Return each line that stands in files of both frameworks, with the first file of either."""
    torch, mindspore = (_places(root, framework) for framework in FRAMEWORKS)
    return [
        f"{line}  # {torch[line][0]}, {mindspore[line][0]}"
        for line in torch
        for _ in range(min(len(torch[line]), len(mindspore[line])))
    ]


def _places(root: Path, framework: str) -> dict[str, list[Path]]:
    """Return the lines that count in the files for a framework, each with its files."""
    found: dict[str, list[Path]] = defaultdict(list)
    paths = (path.relative_to(root) for folder in FOLDERS for path in sorted((root / folder).rglob("*.py")))
    for path in paths:
        if framework not in str(path) or "unilaunch_mnist" in path.parts:
            continue
        text = (root / path).read_text(encoding="utf-8")
        left_out = set(_not_counted(ast.parse(text)))
        for number, line in enumerate(text.splitlines(), 1):
            code = line.strip()
            if number not in left_out and not code.startswith("#") and len(code) >= _LEAST:
                found[code].append(path)
    return found


def _not_counted(tree: ast.Module) -> Iterator[int]:
    """Yield the numbers of the lines of imports, docstrings and signatures."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from range(node.lineno, (node.end_lineno or 0) + 1)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from range(node.lineno, node.body[0].lineno)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if ast.get_docstring(node) is not None else None
            yield from range(first.lineno, (first.end_lineno or 0) + 1) if first else ()


if __name__ == "__main__":
    sys.exit(main())
