"""Programs that use MPI themselves: which libraries they import, found without running them, and refused without MPI.

A rank of a direct start has no MPI: a library that initialises it would see a world of one rank on each of them.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from unilaunch.errors import SpecError
from unilaunch.overriding import override
from unilaunch.spec.target import Target

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder
else:  # importing it takes 8 ms
    MetaPathFinder = object

#: Python packages that initialise MPI when a program imports or uses them.
LIBRARIES = frozenset({
    "mpi4py", "mpi4jax", "petsc4py", "slepc4py", "horovod", "dolfinx", "dolfin", "firedrake", "adios2",
    "mpi4py_fft", "libensemble", "heat",
})  # fmt: skip
#: Most source files of a program that are read.
_MOST_FILES = 200


def find_import(target: Target, packages: frozenset[str], folder: Path | None = None) -> str | None:
    """Return the first of *packages* that a program imports, in its file or in a module of its own; None if none.

    Imports anywhere in a file count, also in functions. Nothing is executed. The answer may be wrong in both ways: a
    name may be imported that is computed, or an import may never be reached.

    Args:
        target: A script, a module or a function.
        packages: The names of packages.
        folder: The folder in which the program runs; None: the current one.
    """
    if target.file:
        folder = target.file.absolute().parent
    path = [str(folder or Path.cwd())]
    if target.source:
        return _first(imported(target.source), packages)
    todo = [target.file] if target.file else source_files(target.name.partition(":")[0], path)
    seen: set[Path] = set()
    while todo and len(seen) < _MOST_FILES:
        file = todo.pop(0)
        if file in seen:
            continue
        seen.add(file)
        names = list(_imported_by(file))
        if package := _first(names, packages):
            return package
        for name in names:
            todo += source_files(name, path)
    return None


def _first(names: Iterator[str] | Sequence[str], packages: frozenset[str]) -> str | None:
    return next((top for name in names if (top := name.partition(".")[0]) in packages), None)


def _imported_by(file: Path) -> Iterator[str]:
    try:
        yield from imported(file.read_bytes(), file)
    except (OSError, SyntaxError, ValueError, RecursionError):  # Python shows the error when it runs the program
        return


def imported(source: str | bytes, file: Path | None = None) -> Iterator[str]:
    """Yield the modules that a source imports; a relative import by its name beside *file*."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield module
                yield from (f"{module}.{name.name}" for name in names)
            case ast.ImportFrom(module=module, names=names) if file:
                package = file.parent.name
                yield from (f"{package}.{part}" for part in (module, *(name.name for name in names)) if part)
            case _:
                pass


def source_files(module: str, path: Sequence[str], *, is_main: bool = True) -> list[Path]:
    """Return the source files of a module and of its packages, in the order in which Python executes them.

    Args:
        module: The module's name.
        path: The folders to look in.
        is_main: Whether the `__main__` of a package belongs to them.
    """
    files: list[Path] = []
    search = list(path)
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        try:
            spec = PathFinder.find_spec(".".join(parts[:number]), search)
        except (ImportError, ValueError):
            break
        if spec is None:
            break
        if spec.origin and spec.origin.endswith(".py"):
            files.append(Path(spec.origin))
        search = list(spec.submodule_search_locations or ())
        if not search:
            break
        if is_main and number == len(parts) and (main := Path(search[0], "__main__.py")).is_file():
            files.append(main)
    return files


def refuse_imports() -> None:
    """Let an import of one of `LIBRARIES` raise an error from now on, in a rank that has no MPI."""
    sys.meta_path.insert(0, _Refusal())


class _Refusal(MetaPathFinder):
    """Refuses the libraries. `importlib.util.find_spec` is no import: a program asks with it whether one is there."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in LIBRARIES and not _is_only_asked():
            raise SpecError(
                f"{fullname} needs MPI, and `launch` has started the ranks without an mpirun: add --launcher mpirun "
                "(or --launcher direct, if the program needs no MPI between its ranks)"
            )
        return None


def _is_only_asked() -> bool:
    frame = sys._getframe(2)  # noqa: SLF001  (the caller of find_spec tells an import from a question)
    while frame.f_back and frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        frame = frame.f_back
    return frame.f_code.co_name == "find_spec" and "importlib" in frame.f_code.co_filename
