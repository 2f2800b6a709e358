"""Parse the command line into fields with text values."""

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from unilaunch.errors import SpecError, nearest
from unilaunch.interfaces import entry_points, plugins
from unilaunch.record import replace
from unilaunch.spec.grammar import CORE, Parser, job_file_of, make_parser
from unilaunch.spec.habits import COMMANDS, LAUNCH, Habit, Same
from unilaunch.spec.target import read_target
from unilaunch.spec.words import Grammar, Words, is_option, refuse_python, split
from unilaunch.version import __version__

_HELP = ("-h", "--help", "--help-all")
Hint = Callable[[str], str]
#: A function: package.module:function, or FILE.py:function.
_FUNCTION = re.compile(r"[\w./-]+:[A-Za-z_][\w.]*")
#: Commands that start a program.
_STARTING = ("run", "launch")


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the given values as text, by field, and the command under "command".

    Raises:
        SpecError: The command line cannot be parsed, or has an unknown option.
        SystemExit: The help or the version was requested, and has been shown.
    """
    command, *words = arguments or [""]
    parser, commands = make_parser(command, words)
    if command not in commands:
        return _parse_no_command(arguments, parser, commands)
    found = _split(command, words, commands[command])
    if set(_HELP) & set(found.own):
        _show_help(command, found, commands[command])
    namespace, unknown = parser.parse_known_args([command, *found.own])
    if unknown:
        rule = "there is one TARGET, and every other word" if command in _STARTING else "every word"
        raise SpecError(f"{unknown[0]!r}: {rule} follows its option")
    given = vars(namespace)
    if found.args:
        given["args"] = found.args
    _refuse_of_other_targets(command, found.target, given, " --" if "--" in words else "")
    return _fold(given)


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether the help of the command is requested, and not that of the program that it starts."""
    command, *words = arguments
    if not set(_HELP) & set(words):
        return False
    _, commands = make_parser(command, words)
    return bool(set(_HELP) & set(_split(command, words, commands[command]).own))


def own_options(command: str, words: Sequence[str]) -> list[str]:
    """Return the arguments of a program that are also options of *command*."""
    grammar = _grammar(command, (), make_parser(command)[1][command])
    of_models = {
        f"--{field.replace('_', '-')}" for model in plugins.models().values() for field in model.spec.model_fields
    }
    own = replace(
        grammar,
        takes={name: grammar.takes[name] for name in set(grammar.takes) - of_models},
        other_names={},
        habits={name: habit for name, habit in LAUNCH.items() if isinstance(habit, Same)},
    )
    return [word.partition("=")[0] for word in words if word not in _HELP and is_option(word, own)]


def _split(command: str, words: Sequence[str], parser: Parser) -> Words:
    """Return unilaunch's words and the program's; the program may follow `--` if there is none before it."""
    grammar = _grammar(command, words, parser)
    found = split(words, grammar)
    if not found.args or found.target or {"--config", "--spec"} & {word.partition("=")[0] for word in found.own}:
        return found
    first, *args = found.args
    refuse_python(first, words[: words.index("--")], args, grammar)
    if first == "-m" and args:
        return replace(found, own=(*found.own, *found.args[:2]), args=found.args[2:], target=f"-m {args[0]}")
    is_program = first.endswith(".py") or _FUNCTION.fullmatch(first)
    return replace(found, own=(*found.own, first), args=tuple(args), target=first) if is_program else found


def _grammar(command: str, words: Sequence[str], parser: Parser) -> Grammar:
    """Return the grammar of *command*, which *words* follow."""
    starts = command in _STARTING
    models = plugins.models() if starts else {}
    others = () if starts or command in CORE else (plugins.commands()[command],)
    _, form = job_file_of(words if command == "launch" else ())
    hints: dict[str, Hint] = {"launch": _hint_at_job_file, "run": partial(_hint_at_launch, words)}
    return Grammar(
        command=command,
        takes={  # what a word means in a job file wins
            name: number for name, number in parser.takes().items() if not form or name.lstrip("-") not in form.habits
        },
        other_names={
            name: field for each in (*models.values(), *others) for name, field in each.spec.other_names.items()
        },
        habits=_habits(command, words),
        is_program=(lambda word: word not in models) if starts else None,
        hint=hints.get(command, lambda _: ""),
    )


def _habits(command: str, words: Sequence[str]) -> Mapping[str, Habit]:
    """Return the options of other launchers that *command* takes; a job file has its engine's own."""
    if command not in {"launch", "doctor"}:
        return {}
    _, form = job_file_of(words if command == "launch" else ())
    return {**LAUNCH, **(form.habits if form else {})}


def _hint_at_job_file(word: str) -> str:
    """Return which job files have an option of this name."""
    field = word.partition("=")[0].removeprefix("--no-").lstrip("-").replace("-", "_")
    forms = entry_points.make_all(entry_points.JOB_FILES, "job file")
    takers = [name for name, form in forms.items() if field in form.options.model_fields]
    return f"only --emit {' or '.join(takers)} takes it" if takers else ""


def _hint_at_launch(words: Sequence[str], word: str) -> str:
    """Return the command line with `launch`, if `launch` has the option and `run` does not."""
    if not is_option(word, _grammar("launch", (), make_parser("launch")[1]["launch"])):
        return ""
    return f"run is one rank, which mpirun starts; to start several type {shlex.join(['unilaunch', 'launch', *words])}"


def _refuse_of_other_targets(command: str, target: str, given: Mapping[str, Any], mark: str) -> None:
    """Raise an error for options of another model than the target; *mark* is `--` if it was typed.

    Raises:
        SpecError: There is such an option, or the target is not valid.
    """
    if command not in _STARTING or not target:
        return
    fields = {name: set(model.spec.model_fields) for name, model in plugins.models().items()}
    for field in given:
        takers = [name for name in fields if field in fields[name]]
        if takers and target not in takers:
            read_target(target, fields, here=False)
            option = f"--{field.replace('_', '-')}"
            behind = "" if target in fields else f"; if {target} takes it, type {target}{mark} {option} ..."
            raise SpecError(f"{option}: an option of {' and '.join(takers)}, not of {target}{behind}")


def _fold(given: dict[str, Any]) -> dict[str, Any]:
    """Put `-m NAME` into the target, and a job file's options into `job_file`."""
    module = given.pop("module", None)
    if module is not None and "target" in given:
        raise SpecError(f"-m {module} and {given['target']}: there is one TARGET; its arguments stand behind it")
    if module is not None:
        given["target"] = f"-m {module}"
    inside = {name: given.pop(name) for name in list(given) if name.startswith("job_file.")}
    if inside:
        given["job_file"] = {name.partition(".")[2]: value for name, value in inside.items()}
    return given


def _parse_no_command(arguments: Sequence[str], parser: Parser, commands: Mapping[str, Parser]) -> NoReturn:
    """Show the help or the version for a command line without a command, or raise an error.

    Raises:
        SpecError: There is no such command.
        SystemExit: The text was shown.
    """
    first = arguments[0] if arguments else ""
    if first == "help" and arguments[1:]:
        parse([*arguments[1:], "--help"])
    if first in {"", "help", *_HELP}:
        from unilaunch.spec.help_pages import overview

        sys.stdout.write(overview(parser))
        sys.exit(0 if first else SpecError.exit_code)
    if first in {"--version", "-V"}:
        sys.stdout.write(f"unilaunch {__version__}\n")
        sys.exit(0)
    if first.partition("=")[0] == "--print-completion":
        from unilaunch.spec.completion import completion

        sys.stdout.write(completion(parser, commands, first.partition("=")[2] or "".join(arguments[1:2]) or "bash"))
        sys.exit(0)
    raise SpecError(_no_command(first, arguments, list(commands)))


def _no_command(first: str, arguments: Sequence[str], commands: Sequence[str]) -> str:
    launch = make_parser("launch")[1]["launch"]
    if first.endswith(".py") or first in plugins.models() or is_option(first, _grammar("launch", (), launch)):
        return f"{first}: a command is missing; type {shlex.join(['unilaunch', 'launch', *arguments])}"
    near = f"; type unilaunch {COMMANDS[first]}" if first in COMMANDS else nearest(first, commands)
    return f"{first}: no such command{near}; there are {', '.join(commands)}"


def _show_help(command: str, found: Words, parser: Parser) -> NoReturn:
    from unilaunch.spec.help_pages import page

    model = plugins.models().get(found.target) if command in _STARTING else None
    sys.stdout.write(page(command, parser, model, whole="--help-all" in found.own))
    sys.exit(0)
