"""Find a function object for the ranks: by its module, by its source file, or by the cells of a notebook."""

import ast
import inspect
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from unilaunch.errors import SpecError, nearest
from unilaunch.job.arguments import Arguments
from unilaunch.job.cells import select
from unilaunch.record import Record
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.target import Target

#: Most characters of a notebook's source: it is passed in one environment variable, which can hold 128 KiB.
_LARGEST_SOURCE = 60_000
#: Options of the command line that have no field of their name.
_SHORT = {"n": "nprocs", "np": "nprocs"}
_STANDARD = sysconfig.get_path("stdlib")  # modules in C are in a folder below it
_OF_ANY_NUMBER = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class Found(Record):
    """How ranks find a function.

    Attributes:
        target: The target that the ranks run.
        roots: The folders in which they must look for modules that not every Python finds.
        note: A note for the user; "" for none.
    """

    target: Target
    roots: tuple[Path, ...] = ()
    note: str = ""


def find_function(function: Callable[..., Any]) -> Found:
    """Return how ranks find *function*.

    Raises:
        SpecError: The ranks cannot find it.
    """
    name, module = _name(function)
    main = sys.modules["__main__"]
    if module is not main:
        if (file := getattr(module, "__file__", None)) and not _is_named_as(file, module):
            raise SpecError(
                f"{module.__name__} was loaded from {file}: ranks find a module by its name: import it by that"
            )
        return Found(Target("function", f"{module.__name__}:{name}"), _roots(module))
    spec = getattr(main, "__spec__", None)  # python -m pdb deletes it
    if spec and spec.name != "__main__":  # python -m package.module; not python FOLDER
        return Found(Target("function", f"{spec.name}:{name}"), _roots(main))
    if (file := getattr(main, "__file__", None)) and Path(file).is_file():
        if not file.endswith(".py"):
            raise SpecError(f"{name} is in {file}: ranks load a file whose name ends in .py: rename it")
        return Found(Target("function", f"{Path(file).absolute()}:{name}"))
    if cells := main.__dict__.get("In"):  # IPython's, of a notebook
        source, chosen = select(name.partition(".")[0], cells, main.__dict__)
        if len(source) > _LARGEST_SOURCE:
            raise SpecError(f"{name}: the cells that it uses have {len(source) / 1e3:.0f} kB: write a module")
        numbers = f"cell{'s' * (len(chosen) > 1)} {', '.join(map(str, chosen))}"
        note = f"{name} is of a notebook: the ranks run what it uses of {numbers}: imports, definitions and constants"
        return Found(Target("function", f"<{numbers}>:{name}", source), _roots(*_imported(source)), note)
    raise SpecError(f"{name}: its source is in no file: write it into a module, or into a script that calls launch")


def check_options(function: Callable[..., Any], options: Mapping[str, Any], given: Arguments) -> None:
    """Raise an error for arguments that do not fit the function, and for options that may be meant as its arguments.

    Args:
        function: The function.
        options: All options of the caller.
        given: The part of them that is passed to the function.

    Raises:
        SpecError: The arguments do not fit.
    """
    name = function.__qualname__
    if inspect.iscoroutinefunction(function):
        raise SpecError(f"{name}: an async function: launch one that calls asyncio.run({name}(...))")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function in C has no signature
        return
    parameters = [one.name for one in signature.parameters.values() if one.kind not in _OF_ANY_NUMBER]
    both = [option for option in options if option in {"check", *LaunchSpec.model_fields} and option in parameters]
    if both and not isinstance(options.get("args"), Mapping):
        raise SpecError(
            f"{both[0]}: an option of launch, and a parameter of {name}: give {name} its arguments as "
            f"args={{{both[0]!r}: ...}}"
        )
    try:
        signature.bind(*given.positional, **given.named)
    except TypeError as error:
        with suppress(TypeError):  # what is missing may be an argument that a decorator supplies
            signature.bind_partial(*given.positional, **given.named)
            inspect.signature(function, follow_wrapped=False).bind(*given.positional, **given.named)
            return
        unknown = [_SHORT.get(name, name) for name in given.named if name not in signature.parameters]
        hint = nearest(unknown[0], [*LaunchSpec.model_fields, *signature.parameters]) if unknown else ""
        raise SpecError(f"{name}(): {error}{hint}") from None


def _name(function: Callable[..., Any]) -> tuple[str, ModuleType]:
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not name or module is None or found is not function:
        raise SpecError(
            f"{name or function!r}: ranks cannot find it by this name: launch a function that stands at the top level "
            "of a module or a script (no lambda, partial, bound method or inner function)"
        )
    return name, module


def _imported(source: str) -> list[ModuleType]:
    """Return the modules that the source's import statements load, as this process has them.

    A package may be a folder without __init__.py: what is imported from it has a file, and the package has none.
    """
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
    return [sys.modules[name] for name in names if name in sys.modules]


def _roots(*modules: ModuleType) -> tuple[Path, ...]:
    """Return the folders from which modules were imported, but those of the standard library and installed packages."""
    found = [path for module in modules if (path := _root(module))]
    return tuple(dict.fromkeys(found))


def _root(module: ModuleType) -> Path | None:
    if not (file := getattr(module, "__file__", None)) or not _is_named_as(file, module):
        return None
    path = Path(file).absolute()
    root = path.parents[_full_name(module).count(".") + (path.stem == "__init__")]
    return None if root.name in {"site-packages", "dist-packages"} or root.is_relative_to(_STANDARD) else root


def _is_named_as(file: str, module: ModuleType) -> bool:
    path = Path(file).absolute()
    own = path.parent if path.stem == "__init__" else path.parent / path.name.partition(".")[0]
    return own.match(_full_name(module).replace(".", "/"))


def _full_name(module: ModuleType) -> str:
    return module.__spec__.name if module.__spec__ else module.__name__
