"""Find the framework that a program imports first, so that the agent can import it before the fork."""

import ast
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from unilaunch.target import Target

#: Packages that the frameworks import too.
_HARMLESS = {*sys.stdlib_module_names, "numpy"}


def first_import(target: Target, frameworks: Collection[str]) -> str | None:
    """Return the framework; None if there is none, or if a statement before its import may change the import.

    A docstring, imports of the standard library and of numpy, and plain constants may come before the import.

    Args:
        target: A script, a module or a function.
        frameworks: The packages to look for.
    """
    try:
        for file in _files(target):
            for statement in ast.parse(file.read_bytes()).body:
                for name in _imported(statement):
                    if (file.parent / name).exists() or (file.parent / f"{name}.py").exists():
                        return None  # a file beside it has the name of a library: Python decides at run time
                    if name in frameworks:
                        return name
                    if name not in _HARMLESS:
                        return None
    except (OSError, SyntaxError, ValueError):
        pass
    return None


def _imported(statement: ast.stmt) -> Iterator[str]:
    """Return the packages that a statement imports."""
    match statement:
        case ast.Import(names):
            yield from (name.name.partition(".")[0] for name in names)
        case ast.ImportFrom(module=str(module), level=0):
            yield module.partition(".")[0]
        case ast.Expr(ast.Constant()) | ast.Assign(value=ast.Constant(), targets=[ast.Name()]):
            pass
        case _:
            raise ValueError("a statement whose effect is unknown")


def _files(target: Target) -> Iterator[Path]:
    """Return the files that Python executes for *target*, in their order."""
    if target.file or target.source:
        yield from filter(None, [target.file])
        return
    path: list[str] | None = [str(Path.cwd()), *sys.path[1:]]
    parts = target.name.partition(":")[0].split(".")
    for number in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:number]), path)
        if not spec or not spec.origin or not spec.origin.endswith(".py"):
            raise ValueError("a module whose source is unknown")
        yield Path(spec.origin)
        path = list(spec.submodule_search_locations or ())
    if target.kind == "module" and path:
        yield Path(path[0], "__main__.py")
