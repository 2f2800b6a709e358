"""Split a command line into words of unilaunch and of the program, and parse ours into fields with text values."""

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn

from unilaunch.errors import SpecError, nearest
from unilaunch.interfaces import plugins
from unilaunch.record import Record, replace
from unilaunch.spec.grammar import CORE, Parser, job_file_of, make_parser
from unilaunch.spec.habits import COMMANDS, LAUNCH, Habit, Instead, Needless, Same
from unilaunch.spec.target import read_target
from unilaunch.version import __version__

_HELP = ("-h", "--help", "--help-all")
Hint = Callable[[str], str]
#: A function: package.module:function, or FILE.py:function.
_FUNCTION = re.compile(r"[\w./-]+:[A-Za-z_][\w.]*")
#: Commands that start a program.
_STARTING = ("run", "launch")
_GLUED = re.compile(r"(-n|-np|-c)(\d+)|(-x)([A-Za-z_]\w*=.*)|(-H)([^=].*)", re.DOTALL)
_PYTHON = re.compile(r"(.*/)?python[\d.]*")


class Grammar(Record):
    """The words that a command accepts.

    Attributes:
        command: The command's name.
        takes: The number of values of each option, by the option with its dashes.
        other_names: Other names of options, without dashes, with unilaunch's names.
        habits: Options of other launchers, without dashes.
        is_program: Returns whether a word that is not an option is a program; None if the command starts no program.
        hint: Returns a hint about an option that the command does not have; "" for none.
    """

    command: str
    takes: Mapping[str, int]
    other_names: Mapping[str, str]
    habits: Mapping[str, Habit]
    is_program: Callable[[str], bool] | None = None
    hint: Callable[[str], str] = lambda _: ""


class Words(Record):
    """A command line, split.

    Attributes:
        own: Options under unilaunch's names, and the target.
        args: The program's arguments.
        target: The first word that is not an option, or `-m MODULE`; "" if there is none.
    """

    own: tuple[str, ...]
    args: tuple[str, ...]
    target: str = ""


class _Option(Record):
    """An option as it was typed.

    Attributes:
        name: Unilaunch's name, or the typed name of another launcher's option.
        value: The value in the same word, as in --seed=3; None if there is none.
        takes: Number of its values.
        habit: Its meaning in unilaunch, if it is an option of another launcher.
    """

    name: str
    value: str | None
    takes: int
    habit: Habit | None = None


def split(words: Sequence[str], grammar: Grammar) -> Words:
    """Return unilaunch's words and the program's.

    All words after a program belong to the program. If there is a `--`, all words before it belong to unilaunch, and
    all words after it to the program.

    Args:
        words: The command line, without the command.
        grammar: The words that the command accepts.

    Raises:
        SpecError: An option is unknown, or must be typed in another way.
    """
    marked = bool(grammar.is_program) and "--" in words
    end = words.index("--") if marked else len(words)
    front = list(words[:end])
    own: list[str] = []
    target = program = ""
    while front and (marked or not program):
        word = front.pop(0)
        if word == "--":  # for a command that starts no program: the words after it are not options
            own += [word, *front]
            front = []
            break
        if not word.startswith("-") or word == "-":
            if grammar.is_program and not word:
                raise SpecError("'': an empty word before the program's own: is a variable not set?")
            own.append(word)
            target = target or word
            if grammar.is_program and not program and grammar.is_program(word):
                refuse_python(word, words[: end - len(front) - 1], words[end - len(front) :], grammar)
                program = word
            continue
        option = _known(word, program, grammar)
        values = _take_values(option, front)
        own += _write(option, values)
        if option.name == "-m" and grammar.is_program:
            target = program = f"-m {' '.join(values)}"
    _refuse_two_numbers(own)
    return Words(tuple(own), tuple(words[end + 1 :] if marked else front), target)


def _take_values(option: _Option, front: list[str]) -> list[str]:
    """Return the values of an option; values in separate words are removed from *front*."""
    if option.value is not None:
        if not (option.takes or isinstance(option.habit, Instead)):
            raise SpecError(
                f"{option.name}={option.value}: this option takes no value: type {option.name}, or leave it out"
            )
        return [option.value]
    values = front[: option.takes]
    del front[: option.takes]
    return values


def _known(word: str, program: str, grammar: Grammar) -> _Option:
    """Return the option that *word* is.

    Raises:
        SpecError: There is no such option. If *program* is not empty, it comes before *word*, and `--` after it.
    """
    if option := _read(word, grammar):
        return option
    behind = f"; what stands in front of -- is unilaunch's: type {program} -- {word} ..." if program else ""
    raise SpecError(f"{word}: {_unknown(word, grammar)}{behind}")


def is_option(word: str, grammar: Grammar) -> bool:
    """Return whether *word* is an option of the command, in any spelling."""
    option = _read(word, grammar) if word.startswith("-") else None
    return option is not None and not isinstance(option.habit, Instead)


def _read(word: str, grammar: Grammar) -> _Option | None:
    """Return the option that *word* is; None if there is none."""
    name, equals, text = word.partition("=")
    value = text if equals else None
    if (glued := _GLUED.fullmatch(word)) and word not in grammar.takes:
        name, value = filter(None, glued.groups())
    key = name.lstrip("-").replace("_", "-")
    other = grammar.other_names.get(key.replace("-", "_"), "").replace("_", "-")
    for option in (name, f"--{key}", f"--{other}"):
        if option in grammar.takes:
            return _Option(option, value, grammar.takes[option])
    habit = grammar.habits.get(key)
    if isinstance(habit, Same) and habit.option not in grammar.takes:
        return None
    return _Option(name, value, habit.takes, habit) if habit else None


def _write(option: _Option, values: Sequence[str]) -> list[str]:
    """Return an option with its values under unilaunch's names, as --name=value if there is one: it may be negative.

    Args:
        option: The option.
        values: Its values.
    """
    name, first = option.name, "".join(values[:1])
    match option.habit:
        case Instead(text):
            raise SpecError(f"{name}: {text}")
        case Needless(_, allowed, instead):
            if allowed and first not in allowed:
                raise SpecError(f"{name} {first}: {instead}")
            return []
        case Same(ours, text):
            return [f"{ours}={text.replace('{}', first)}"] if values or "{}" not in text else [ours]
    if name.startswith("--") and len(values) == 1:
        return [f"{name}={first}"]
    return [name, *(f" {value}" if value.startswith("-") else value for value in values)]  # argparse: not an option


def _refuse_two_numbers(own: Sequence[str]) -> None:
    """Raise an error for two different numbers of ranks."""
    numbers = dict.fromkeys(word.partition("=")[2] for word in own if word.startswith("--nprocs="))
    numbers |= {after: None for word, after in pairwise(own) if word == "-n"}
    if len(numbers) > 1:  # srun's -c is no number of ranks
        raise SpecError(f"{' and '.join(numbers)} ranks: give one number, -n; the threads of each rank are --threads 4")


def refuse_python(word: str, before: Sequence[str], behind: Sequence[str], grammar: Grammar) -> None:
    """Raise an error for an interpreter before the program, which users of mpirun type."""
    if _PYTHON.fullmatch(word):
        variables, program = _without_options(behind)
        line = shlex.join([*variables, "unilaunch", grammar.command, *before, *program])
        raise SpecError(f"{word}: unilaunch starts Python itself: type {line}")


def _without_options(words: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """Return the variables that stand for an interpreter's options, and the words that follow these options."""
    variables: list[str] = []
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        name, value = (before, word) if before in {"-X", "-W"} else (word[:2], word[2:])
        if not (before in {"-X", "-W"} or word.startswith("-")) or name == "-m":
            return variables, words[at:]
        match name, value:
            case "-X", "dev":
                variables.append("PYTHONDEVMODE=1")
            case "-W", str(value) if value:
                variables.append(f"PYTHONWARNINGS={value}")
            case "-O", _:
                variables.append(f"PYTHONOPTIMIZE={len(word) - 1}")
            case _:
                pass
    return variables, ()


def _unknown(word: str, grammar: Grammar) -> str:
    if hint := grammar.hint(word):
        return hint
    name = "--" + word.partition("=")[0].lstrip("-").replace("_", "-")
    return f"no such option{nearest(name, [option for option in grammar.takes if option.startswith('--')])}"


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
    forms = plugins.make_all(plugins.JOB_FILES, "job file")
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
