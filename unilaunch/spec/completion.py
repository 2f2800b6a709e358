"""Completion in the shell: options, their choices and examples, files and folders, commands and models."""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from unilaunch.errors import SpecError
from unilaunch.interfaces import plugins
from unilaunch.spec.grammar import Parser, add_job_files

#: Ends of the names of options whose value is a folder.
_FOLDERS = ("dir", "cwd", "prefix", "folder")


def completion(parser: Parser, commands: Mapping[str, Parser], shell: str) -> str:
    """Return the completion script for a shell.

    Raises:
        SpecError: There is no script for that shell.
    """
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise SpecError(f"--print-completion {shell}: expected {', '.join(shtab.SUPPORTED_SHELLS)}")
    add_job_files(commands["launch"])
    for command in commands.values():
        for action in command.options():
            _complete(action, shtab)
    return str(shtab.complete(parser, shell=shell, root_prefix="unilaunch"))


def _complete(action: argparse.Action, shtab: Any) -> None:
    """Set how the values of an option are completed: with its choices, folders, or files."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    how: Any = None
    if metavar.startswith("{"):
        action.choices = metavar.strip("{}").split(",")
    elif action.dest == "backend":
        action.choices = ["auto", *plugins.names(plugins.BACKENDS)]
    elif action.dest == "target":
        how = _names_and_files("model", plugins.named_models())
    elif examples := getattr(action, "examples", None):
        how = _names_and_files(action.dest, examples)
    elif metavar in {"PATH", "FILE", "FOLDER"}:
        how = shtab.DIRECTORY if action.dest.endswith(_FOLDERS) else shtab.FILE
    if how:
        action.complete = how  # type: ignore[attr-defined]  # shtab reads this attribute


def _names_and_files(what: str, names: Iterable[str]) -> dict[str, Any]:
    function, words = f"_unilaunch_{what}_or_file", " ".join(names)
    return {
        "bash": function,
        "zsh": function,
        "fish": f"(printf '%s\\n' {words}; __fish_complete_path (commandline -ct))",
        "preamble": {
            "bash": f"{function}() {{ compgen -W '{words}' -- $1; compgen -f -- $1; }}",
            "zsh": f"{function}() {{ compadd {words}; _files }}",
        },
    }
