"""A function object as what ranks run: named by its module or its source file, or by the cells of a notebook."""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from unilaunch.errors import SpecError, nearest
from unilaunch.job.arguments import Arguments
from unilaunch.job.cells import select
from unilaunch.launch_spec import LaunchSpec
from unilaunch.target import Target

#: Characters of a notebook's source: it travels in one variable of the environment, which takes 128 KiB.
_LARGEST_SOURCE = 60_000


@dataclass(frozen=True, slots=True)
class Found:
    """Where ranks find a function.

    Attributes:
        target: What they run.
        root: The folder in which they must look for its module; None if every Python finds it.
        note: What the user is to know; "" if nothing.
    """

    target: Target
    root: Path | None = None
    note: str = ""


def find_function(function: Callable[..., Any]) -> Found:
    """Return where ranks find *function*.

    Raises:
        SpecError: They cannot find it.
    """
    name, module = _name(function)
    main = sys.modules["__main__"]
    if module is not main:
        return Found(Target("function", f"{module.__name__}:{name}"), _root(module))
    if main.__spec__:  # python -m package.module
        return Found(Target("function", f"{main.__spec__.name}:{name}"), _root(main))
    if file := getattr(main, "__file__", None):
        return Found(Target("function", f"{Path(file).absolute()}:{name}"))
    if cells := main.__dict__.get("In"):  # IPython's, of a notebook
        chosen = select(name.partition(".")[0], cells)
        if len(chosen.source) > _LARGEST_SOURCE:
            raise SpecError(f"{name}: the cells that it uses have {len(chosen.source) / 1e3:.0f} kB: write a module")
        numbers = f"cell{'s' * (len(chosen.cells) > 1)} {', '.join(map(str, chosen.cells))}"
        note = f"{name} is of a notebook: the ranks run what it uses of {numbers}: imports, definitions and constants"
        return Found(Target("function", f"<{numbers}>:{name}", chosen.source), note=note)
    raise SpecError(f"{name}: its source is in no file: write it into a module, or into a script that calls launch")


def check_options(function: Callable[..., Any], options: Mapping[str, Any], given: Arguments) -> None:
    """Refuse arguments that do not fit the function, and options that might be meant for it.

    Args:
        function: What is called.
        options: All that the caller gave.
        given: Which of it goes to the function.

    Raises:
        SpecError: It does not fit.
    """
    name = function.__qualname__
    try:
        signature = inspect.signature(function)
    except ValueError:  # of C
        return
    both = [option for option in options if option in LaunchSpec.model_fields and option in signature.parameters]
    if both and not isinstance(options.get("args"), Mapping):
        raise SpecError(
            f"{both[0]}: an option of launch, and a parameter of {name}: give {name} its arguments as "
            f"args={{{both[0]!r}: ...}}"
        )
    try:
        signature.bind(*given.positional, **given.named)
    except TypeError as error:
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
    """Return the folder from which a module was imported; None if it is one of Python's own or of its packages."""
    file = getattr(module, "__file__", None)
    name = module.__spec__.name if module.__spec__ else module.__name__
    if not file:
        return None
    path = Path(file).absolute()
    up = name.count(".") + (path.stem == "__init__")
    root = path.parents[up]
    return None if root.name in {"site-packages", "dist-packages"} or root == Path.cwd() else root
