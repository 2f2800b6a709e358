"""Find a function object for the ranks: by its module, by its source file, or by the cells of a notebook."""

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from unilaunch.errors import SpecError, nearest
from unilaunch.job.arguments import Arguments
from unilaunch.job.cells import select
from unilaunch.launch_spec import LaunchSpec
from unilaunch.record import Record
from unilaunch.target import Target

#: Most characters of a notebook's source: it is passed in one environment variable, which can hold 128 KiB.
_LARGEST_SOURCE = 60_000
_OF_ANY_NUMBER = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class Found(Record):
    """How ranks find a function.

    Attributes:
        target: The target that the ranks run.
        root: The folder in which they must look for its module; None if every Python finds it.
        note: A note for the user; "" for none.
    """

    target: Target
    root: Path | None = None
    note: str = ""


def find_function(function: Callable[..., Any]) -> Found:
    """Return how ranks find *function*.

    Raises:
        SpecError: The ranks cannot find it.
    """
    name, module = _name(function)
    main = sys.modules["__main__"]
    if module is not main:
        return Found(Target("function", f"{module.__name__}:{name}"), _root(module))
    if main.__spec__ and main.__spec__.name != "__main__":  # python -m package.module; not python FOLDER
        return Found(Target("function", f"{main.__spec__.name}:{name}"), _root(main))
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
        return Found(Target("function", f"<{numbers}>:{name}", source), note=note)
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
        unknown = [argument for argument in given.named if argument not in signature.parameters]
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


def _root(module: ModuleType) -> Path | None:
    """Return the folder from which a module was imported; None for the standard library and installed packages."""
    file = getattr(module, "__file__", None)
    name = module.__spec__.name if module.__spec__ else module.__name__
    if not file:
        return None
    path = Path(file).absolute()
    up = name.count(".") + (path.stem == "__init__")
    root = path.parents[up]
    return None if root.name in {"site-packages", "dist-packages"} else root
