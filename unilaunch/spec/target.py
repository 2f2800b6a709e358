"""The target of a run: a model, or the user's script, module or function."""

import os
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Literal

from unilaunch.errors import SpecError, nearest
from unilaunch.overriding import override
from unilaunch.record import Record, replace
from unilaunch.spec.habits import ONLY_PYTHON

MODULE_MARK = "-m "
#: How the names of scripts end that are not Python's.
_OF_A_SHELL = (".sh", ".bash")
_HEAD = 512  # bytes that are read of a program
#: The name that `__main__` has in a rank while the file or the cells of its function are being loaded.
LOADING = "__unilaunch_loading__"


class Target(Record):
    """One thing to run.

    Attributes:
        kind: The kind of target.
        name: A model's name, a script's path, a module's name, "package.module:function" or "FILE.py:function".
        source: The source text of a notebook's function; "" if the name says where the source is.
    """

    kind: Literal["model", "script", "module", "function"]
    name: str
    source: str = ""

    @override
    def __str__(self) -> str:
        """Return the target's text in a spec: "model", "train.py", "-m package.train", "package.train:main"."""
        return MODULE_MARK + self.name if self.kind == "module" else self.name

    @property
    def file(self) -> Path | None:
        """The source file of a script, or of a function that is named by its file."""
        if self.kind == "script":
            return Path(self.name)
        file = self.name.rpartition(":")[0]
        return Path(file) if self.kind == "function" and file.endswith(".py") else None

    @property
    def folder(self) -> Path:
        """The folder that Python puts first into `sys.path` to run it."""
        return self.file.resolve().parent if self.file else Path.cwd()

    def put_folder_first(self) -> None:
        """Put its folder first into `sys.path`, as Python does; under `python -P` the first one is the user's own."""
        if not sys.flags.safe_path:
            sys.path[:] = [str(self.folder), *(one for one in sys.path[1:] if one != ".")]  # "." is of `__main__`

    def absolute(self) -> "Target":
        """Return the target with absolute paths, for a process in another folder."""
        function = self.name.rpartition(":")[2]
        match self.kind:
            case "script":
                return replace(self, name=str(Path(self.name).absolute()))
            case "function" if self.file:
                return replace(self, name=f"{self.file.absolute()}:{function}")
        return self

    def find_file(self) -> None:
        """Raise an error if a script, or a function's file, does not exist.

        Raises:
            SpecError: It is not a file.
        """
        path = self.file
        try:
            if path is None or path.is_file():
                return
            fault = "is a folder" if path.is_dir() else "no such file"
        except OSError as error:  # a folder may not be entered, or a name is too long
            fault = (error.strerror or "").lower()
        raise SpecError(f"script {path}: {fault} (in {Path.cwd()})")


def read_target(text: str, models: Collection[str], *, here: bool = True) -> Target:
    """Return the target that *text* names: a model, a file, a module, a function, or a program of PATH in Python.

    Args:
        text: The target's text in a spec.
        models: The installed models.
        here: Whether a script must exist on this machine.

    Raises:
        SpecError: The text names no target, or a script that does not exist.
    """
    target = _parse(text, models)
    if here:
        target.find_file()
    return target


def _parse(text: str, models: Collection[str]) -> Target:
    if text.startswith(MODULE_MARK):
        return Target("module", _dotted(text.removeprefix(MODULE_MARK).strip(), "-m"))
    if text in models:
        return Target("model", text)
    module, colon, function = text.rpartition(":")
    if colon and module.endswith(".py"):
        return Target("function", f"{module}:{_dotted(function, text)}")
    if text.endswith(".py") or "/" in text or (not colon and _is_file(text)):
        return _script(text)
    if colon:
        return Target("function", f"{_dotted(module, text)}:{_dotted(function, text)}")
    return _of_path(text, models)


def _of_path(text: str, models: Collection[str]) -> Target:
    """Return the program of PATH that *text* names, if it is a script of Python."""
    near = f"; did you mean {text}.py?" if _is_file(f"{text}.py") else nearest(text, models)
    if not near and (program := which(text)):
        if _is_of_python(program):
            return Target("script", program)
        raise SpecError(f"{text}: {ONLY_PYTHON}")
    raise SpecError(
        f"no model {text!r}{near}; installed: {', '.join(models) or 'none'}; a script is FILE.py, "
        "a module -m NAME, a function package.module:function or FILE.py:function"
    )


def _is_file(text: str) -> bool:
    return os.path.isfile(text)  # noqa: PTH113  (raises nothing, also if the text is too long for a name)


def _is_of_python(program: str) -> bool:
    """Return whether a program of PATH is a script of Python, such as pip installs for a package's commands."""
    with suppress(OSError), open(program, "rb") as file:  # noqa: PTH123  (as `_is_file`)
        head = file.read(_HEAD)
        return head.startswith(b"#!") and b"python" in b"".join(head.splitlines()[:2])  # the second of a long path
    return False


def _script(path: str) -> Target:
    if path.endswith(_OF_A_SHELL):
        raise SpecError(f"{path}: {ONLY_PYTHON}")
    if path.endswith(".pyz"):
        raise SpecError(f"{path}: an archive: unpack it, and type the path of its __main__.py")
    return Target("script", path)


def _dotted(name: str, where: str) -> str:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise SpecError(f"{where}: {name!r} is no name of a module or a function (package.module:function)")
    return name
