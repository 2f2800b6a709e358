"""Completion in the shell: options, their choices, files and folders, commands and models."""

import argparse
from collections.abc import Mapping
from typing import Any

from unilaunch import entry_points, plugins
from unilaunch.errors import SpecError
from unilaunch.grammar import Parser

#: How the names of options end that are folders.
_FOLDERS = ("dir", "cwd", "prefix", "folder")


def completion(parser: Parser, commands: Mapping[str, Parser], shell: str) -> str:
    """Return the script of completion for a shell.

    Raises:
        SpecError: There is none for that shell.
    """
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise SpecError(f"--print-completion {shell}: expected {', '.join(shtab.SUPPORTED_SHELLS)}")
    for command in commands.values():
        for action in command.options():
            _complete(action, shtab)
    return str(shtab.complete(parser, shell=shell, root_prefix="unilaunch"))


def _complete(action: argparse.Action, shtab: Any) -> None:
    """Say what an option takes: one of its choices, a folder, or a file."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    how: Any = None
    if metavar.startswith("{"):
        action.choices = metavar.strip("{}").split(",")
    elif action.dest == "backend":
        action.choices = ["auto", *entry_points.names(entry_points.BACKENDS)]
    elif action.dest == "target":
        how = _models_and_files()
    elif metavar in {"PATH", "FILE", "FOLDER"}:
        how = shtab.DIRECTORY if action.dest.endswith(_FOLDERS) else shtab.FILE
    if how:
        action.complete = how  # type: ignore[attr-defined]  # where shtab looks for it


def _models_and_files() -> dict[str, Any]:
    names = " ".join(name for name, model in plugins.models().items() if not model.is_internal)
    function = "_unilaunch_model_or_file"
    return {
        "bash": function,
        "zsh": function,
        "fish": "(__fish_complete_path (commandline -ct))",
        "preamble": {
            "bash": f"{function}() {{ compgen -W '{names}' -- $1; compgen -f -- $1; }}",
            "zsh": f"{function}() {{ compadd {names}; _files }}",
        },
    }
