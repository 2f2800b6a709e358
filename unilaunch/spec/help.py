"""What a reader and a shell are shown of the options: the pages of `--help`, and completion.

Models and plug-ins define their own examples.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unilaunch.errors import SpecError
from unilaunch.interfaces import plugins
from unilaunch.interfaces.model import Model
from unilaunch.spec.options import HELP, Parser, Switch, add_job_files, model_options

EXAMPLES = {
    "unilaunch": (
        "mpirun -n 2 python -m unilaunch run",
        "mpirun -n 8 --output-filename log_output python -m unilaunch run --backend mindspore",
        "unilaunch launch --hostfile hosts train.py --lr 0.1",
        "unilaunch logs log_output --follow",
    ),
    "run": (
        "mpirun -n 4 python -m unilaunch run train.py --lr 0.1",
        "python -m unilaunch run --config run.toml --seed 3",
    ),
    "launch": (
        "unilaunch launch -n 4 train.py --lr 0.1",
        "unilaunch launch -H a:4,b:4 train.py --lr 0.1",
    ),
    "doctor": (
        "unilaunch doctor",
        "unilaunch doctor --hostfile hosts",
        "unilaunch doctor --hostfile hosts --measure --healthy well",
        "unilaunch doctor -H a:4,b:4 --mpirun /opt/openmpi/bin/mpirun",
    ),
    "explain": ("unilaunch explain", "mpirun -n 2 python -m unilaunch explain"),
}
#: The start of the command line in a model's examples.
STARTS = {"run": "mpirun -n 2 python -m unilaunch run", "launch": "unilaunch launch -n 2"}
#: The text below the options.
NOTES = {
    "unilaunch": """
unilaunch COMMAND --help shows the options of a command.
Completion in the shell: eval "$(unilaunch --print-completion bash)" (or zsh).
""",
    "run": """
Options of a model: unilaunch run MODEL --help; all: unilaunch run --help-all.
Every option can also stand in the file of --config, and in a variable of the
environment: --seed as UNILAUNCH_SEED. An option wins over the environment, the
environment over the file.
""",
    "launch": """
More options: of a model, unilaunch launch MODEL --help; of a job file, unilaunch
launch --emit sbatch --help; mpirun's and all others, unilaunch launch --help-all.
""",
}
#: The options that `--help` of `run` and `launch` shows, by heading; `--help-all` shows every option.
LAYOUT: Mapping[str, Sequence[str]] = {
    "what to run": ("target", "-m", "--config", "--backend", "--device"),
    "how many ranks, and where": ("--nprocs", "--hosts", "--hostfile", "--nnodes", "--node-rank", "-x"),
    "output and failures": ("--output-dir", "--console", "--max-restarts", "--stall-timeout"),
    "instead of a start": ("--dry-run", "--emit", "--help-all"),
}  # fmt: skip
OVERVIEW = "Start jobs of MindSpore or PyTorch on many ranks, with any MPI, and train graph networks."
#: Ends of the names of options whose value is a folder.
_FOLDERS = ("dir", "cwd", "prefix", "folder")
Sections = Iterable[tuple[str, Sequence[argparse.Action]]]


def overview(parser: Parser) -> str:
    """Return the help of `unilaunch` without a command: the list of commands."""
    listed = parser.listed_commands()
    return _draw(
        "unilaunch COMMAND [options]", OVERVIEW, EXAMPLES["unilaunch"], [("commands", listed)], NOTES["unilaunch"]
    )


def page(command: str, parser: Parser, model: Model | None, *, whole: bool) -> str:
    """Return the help of a command.

    Args:
        command: The command.
        parser: Its options.
        model: Show this model's options instead of the command's.
        whole: Show all options.
    """
    if model:
        examples = [f"{STARTS[command]} {words}" for words in model.examples]
        about = f"The options of the model {model.name}."
        note = f"unilaunch {command} --help shows the options of every target."
        return _draw(f"unilaunch {command} [options] {model.name} [its options]", about, examples,
                     [("options", [_short(action) for action in model_options(model)])], note)  # fmt: skip
    plugin = plugins.commands().get(command) if command not in HELP else None
    about = plugin.help if plugin else HELP[command]
    usage = f"unilaunch {command} [options]" + "".join(_positional(parser, command))
    sections = _chosen(parser) if command in STARTS and not whole else _all(parser)
    examples = list(plugin.examples) if plugin else [*EXAMPLES[command], *_of_models(command)]
    return _draw(usage, about[0].upper() + about[1:] + ".", examples, sections, NOTES.get(command, ""))


def _of_models(command: str) -> Iterable[str]:
    """Yield one example of each model, if the command starts models."""
    for model in plugins.models().values() if command in STARTS else ():
        yield from (f"{STARTS[command]} {words}" for words in model.examples[:1])


def _positional(parser: Parser, command: str) -> Iterable[str]:
    for action in parser.options():
        if not action.option_strings:
            yield f" [{action.metavar or action.dest.upper()}]"
            if command in STARTS:
                yield " [its arguments]"


def _chosen(parser: Parser) -> Sections:
    """Yield the most common options, each in one form."""
    by_name = {name: action for action in parser.options() for name in action.option_strings or [action.dest]}
    for heading, names in LAYOUT.items():
        if found := [_short(by_name[name]) for name in names if name in by_name]:
            yield heading, found
    for heading, actions in parser.groups():
        if heading.startswith("options of --emit"):
            yield heading, [_short(action) for action in actions]


def _all(parser: Parser) -> Sections:
    for heading, actions in parser.groups():
        yield heading, [_short(action) for action in actions]


def _short(action: argparse.Action) -> argparse.Action:
    """Return a switch without the form that is the default; return other options unchanged."""
    if not isinstance(action, Switch):
        return action
    return argparse.Action(action.shown, action.dest, nargs=0, help=action.help)


def _draw(usage: str, about: str, examples: Sequence[str], sections: Sections, note: str) -> str:
    from rich_argparse import RawDescriptionRichHelpFormatter

    class Formatter(RawDescriptionRichHelpFormatter):
        group_name_formatter = str
        text_markup = help_markup = False

    formatter = Formatter("unilaunch", max_help_position=26)
    formatter.add_text(f"usage: {usage}\n{about}")
    if examples:
        formatter.add_text("\n".join(["examples:", *(f"  {example}" for example in examples)]))
    for heading, actions in sections:
        formatter.start_section(heading)
        formatter.add_arguments(actions)
        formatter.end_section()
    formatter.add_text(note)
    return formatter.format_help()


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
